"""florin cost events: pages, cursors, and billing systems that have an event already."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs

import pytest

PATH = "/finance/v1/events?kind=usage&limit=1000"


def event(number):
    return {
        "specversion": "1.0", "id": f"id-{number}", "source": "florin/florin", "type": "florin.usage",
        "subject": "acme", "time": "2026-11-01T00:00:00Z", "datacontenttype": "application/json",
        "data": {"input_tokens": 10, "cached_input_tokens": 0, "output_tokens": 3},
    }  # fmt: skip


@pytest.fixture
def pages(fake):
    """Two pages, and an end."""
    fake.answer("GET", PATH, {"data": [event(1), event(2)], "next": "p1", "more": True})
    fake.answer("GET", f"{PATH}&after=p1", {"data": [event(3)], "next": "p2", "more": False})
    fake.answer("GET", f"{PATH}&after=p2", {"data": [], "next": "p2", "more": False})
    return fake


class Billing:
    """Stands in for a billing system, over a real socket: it gives the next of its answers, which have the
    form that Lago's and Stripe's documentation and issues show. Neither service itself is asked."""

    def __init__(self):
        self.asked, self.answers = [], []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                raw = self.rfile.read(int(self.headers["content-length"]))
                outer.asked.append((dict(self.headers), raw))
                status, body = outer.answers.pop(0) if outer.answers else (200, {})
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *args):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/events"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()


@pytest.fixture
def billing():
    made = Billing()
    yield made
    made.server.shutdown()
    made.server.server_close()
    made.thread.join()


def test_events_go_to_stdout_one_a_line(pages):
    done = pages.florin("cost", "events")
    assert [json.loads(line)["id"] for line in done.stdout.splitlines()] == ["id-1", "id-2", "id-3"]
    assert "3 events" in done.stderr


def test_a_cursor_goes_on_where_the_last_run_ended(pages, tmp_path):
    args = ("cost", "events", "--cursor", str(tmp_path / "cursor"), "--output", str(tmp_path / "out"))
    assert pages.florin(*args).exit_code == 0
    done = pages.florin(*args, "--json")
    assert json.loads(done.stdout) == {"events": 0, "delivered": 0, "already_there": 0, "next": "p2"}
    assert len((tmp_path / "out").read_text().splitlines()) == 3
    (tmp_path / "cursor").write_text("something else")
    assert pages.florin(*args).exit_code == 2


def test_openmeter_gets_batches_of_cloudevents(pages, billing, monkeypatch):
    monkeypatch.setenv("FLORIN_EVENTS_TOKEN", "secret")
    done = pages.florin("cost", "events", "--url", billing.url, "--customer", "acme=cus_1")
    assert done.exit_code == 0, done.stderr
    first, _ = billing.asked
    assert first[0]["content-type"] == "application/cloudevents-batch+json"
    assert first[0]["authorization"] == "Bearer secret"
    assert [(e["id"], e["subject"]) for e in json.loads(first[1])] == [("id-1", "cus_1"), ("id-2", "cus_1")]


def test_lago_may_have_some_of_a_batch_already(pages, billing):
    known = {
        "status": 422,
        "error": "Unprocessable Entity",
        "code": "validation_errors",
        "error_details": {"0": {"transaction_id": ["value_already_exist"]}},
    }
    billing.answers = [(422, known)]
    done = pages.florin("cost", "events", "--url", billing.url, "--format", "lago", "--json")
    sent = [[e["transaction_id"] for e in json.loads(raw)["events"]] for _, raw in billing.asked]
    assert sent == [["id-1", "id-2"], ["id-2"], ["id-3"]]
    assert json.loads(done.stdout).items() >= {"delivered": 3, "already_there": 1}.items()


def test_stripe_gets_a_meter_event_for_each_kind_of_token(pages, billing):
    message = "An event already exists with identifier id-1:input_tokens."
    taken = {"error": {"type": "invalid_request_error", "message": message}}
    billing.answers = [(400, taken)]
    done = pages.florin("cost", "events", "--url", billing.url, "--format", "stripe")
    assert done.exit_code == 0, done.stderr
    assert len(billing.asked) == 6
    headers, raw = billing.asked[1]
    assert headers["idempotency-key"] == "id-1:output_tokens"
    assert parse_qs(raw.decode()) == {
        "event_name": ["florin.output_tokens"], "identifier": ["id-1:output_tokens"],
        "timestamp": ["1793491200"], "payload[stripe_customer_id]": ["acme"], "payload[value]": ["3"],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("form", "status", "body"),
    [
        ("stripe", 400, {"error": {"message": "No such customer: acme already exists elsewhere."}}),
        ("stripe", 400, {"error": None}),
        ("lago", 422, {"error_details": {"0": {"transaction_id": ["value_already_exist", "too_long"]}}}),
        ("lago", 422, {"error_details": {"0": {"code": ["value_already_exist"]}}}),
        ("lago", 422, ["rubbish"]),
    ],
)
def test_any_other_refusal_is_a_failure(pages, billing, form, status, body):
    billing.answers = [(status, body)]
    done = pages.florin("cost", "events", "--url", billing.url, "--format", form)
    assert done.exit_code == 1
    assert str(status) in done.stderr


def test_a_receiver_that_fails_stops_the_run_before_the_cursor_moves(pages, billing, tmp_path):
    billing.answers = [(200, {}), (503, {"busy": True})]
    args = ("cost", "events", "--url", billing.url, "--cursor", str(tmp_path / "cursor"))
    done = pages.florin(*args)
    assert done.exit_code == 1
    assert "503" in done.stderr
    assert json.loads((tmp_path / "cursor").read_text()) == {"next": "p1"}
    assert pages.florin(*args).exit_code == 0
    assert [e["id"] for e in json.loads(billing.asked[-1][1])] == ["id-3"]

"""florin engine drain --wait: what it shows meanwhile, and how it ends."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.fleet.engines.commands import draining
from tests.unit.gateway.commands.test_commands import DRAIN, DRAINED

PATH = "/admin/v1/engines/a1/drain"
FINISHING = DRAIN | {"phase": "finishing", "moves": [], "in_flight": 2}


@pytest.fixture(autouse=True)
def _at_once(monkeypatch):
    monkeypatch.setattr(draining, "_POLL_SECONDS", 0.0)
    monkeypatch.setattr(draining, "_GRACE_SECONDS", 0.0)


def statuses(fake, *bodies: Any) -> None:
    """What one poll after another is answered; the last for ever."""
    left = list(bodies)

    class Answers(dict[tuple[str, str], Any]):
        def get(self, key: Any, default: Any = None) -> Any:
            if key != ("GET", PATH):
                return super().get(key, default)
            body = left.pop(0) if len(left) > 1 else left[0]
            return body if isinstance(body, tuple) else (200, body)

    fake.answers = Answers()
    fake.answer("POST", PATH, DRAIN)


def test_it_says_what_happens_line_by_line_on_a_pipe(fake):
    statuses(fake, DRAIN | {"moves": []}, FINISHING, FINISHING, DRAINED)
    done = fake.florin("engine", "drain", "a1", "--wait")
    assert done.exit_code == 0, done.stderr
    assert done.stderr.splitlines() == [
        "a1: loading its adapters elsewhere, 0 of 1 done",
        "a1: loading its adapters elsewhere, 1 of 1 done",
        "a1: 2 requests still running",
        "Not loaded elsewhere: acme/c@v1 (b1: cordoned).",
    ]
    assert "Engine a1 is drained" in done.stdout


def test_json_is_the_last_status(fake):
    statuses(fake, FINISHING, DRAINED)
    done = fake.florin("engine", "drain", "a1", "--wait", "--json")
    assert json.loads(done.stdout) == DRAINED


def test_a_gateway_that_restarts_meanwhile_ends_nothing(fake):
    away = {"error": {"message": "Redis is away.", "code": "store_unavailable"}}
    statuses(fake, (503, away), FINISHING, DRAINED)
    assert fake.florin("engine", "drain", "a1", "--wait").exit_code == 0


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (FINISHING, "after 0 s: 2 requests still running. Wait longer with `florin engine drain a1 --wait`"),
        (FINISHING | {"in_flight": 0}, "still holds 3 adapters after 0 s"),
        (DRAIN, "has not stopped taking requests after 0 s"),
        (DRAIN | {"phase": "serving", "state": "active"}, "The drain of a1 was ended: the engine is active."),
    ],
)
def test_what_it_says_if_it_does_not_end_well(fake, body, words):
    statuses(fake, body)
    fake.answer("POST", PATH, body)
    done = fake.florin("engine", "drain", "a1", "--wait", "--timeout", "0")
    assert done.exit_code == 1
    assert words in done.stderr.replace("\n", " ")


def test_a_dry_run_has_nothing_to_wait_for(fake):
    assert fake.florin("engine", "drain", "a1", "--dry-run", "--wait").exit_code == 2
    assert fake.asked == []

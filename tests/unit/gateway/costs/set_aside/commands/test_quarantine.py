"""florin cost quarantine: what it asks and prints."""

from __future__ import annotations

import json

PATH = "/finance/v1/quarantine?limit=100"
RECORD = {
    "id": "r-1", "tenant": "acme", "engine": "gpu-a\x1b[31m", "ended": 1_793_000_000_000_000,
    "prompt_tokens": 1200, "completion_tokens": 34,
}  # fmt: skip
ONE = {
    "id": "r-1", "reason": "differs", "recorded_at": "2026-11-03T14:00:00Z", "record": RECORD,
    "stored": {"completion_tokens": 35},
}  # fmt: skip


def test_records_are_listed_with_their_reason(fake):
    body = {"data": [ONE], "total": 7, "next": "x"}
    fake.answer("GET", PATH, body)
    done = fake.florin("cost", "quarantine")
    assert done.exit_code == 0
    said = " ".join(done.stdout.split())
    assert "acme" in said
    assert "the ledger has this record with other content: completion_tokens 35, not 34" in said
    assert "\x1b[31m" not in done.stdout
    assert "The newest 1 of 7; --limit shows more." in done.stderr
    assert json.loads(fake.florin("cost", "quarantine", "--json").stdout) == body


def test_a_record_with_an_impossible_time_is_listed(fake):
    one = {**ONE, "reason": "excluded", "record": {**RECORD, "ended": 9 * 10**18}, "stored": None}
    fake.answer("GET", PATH, {"data": [one], "total": 1, "next": None})
    done = fake.florin("cost", "quarantine")
    assert "an operator excluded it" in done.stdout
    assert str(9 * 10**18) in done.stdout


def test_none_is_said(fake):
    fake.answer("GET", PATH, {"data": [], "total": 0, "next": None})
    assert "No record is in quarantine." in fake.florin("cost", "quarantine").stderr


def test_dismissals_are_shown_and_made(fake):
    dismissal = {"by": "key-1", "at": "2026-11-04T00:00:00Z", "reason": "Shipped twice"}
    fake.answer("GET", PATH, {"data": [{**ONE, "dismissal": dismissal}], "total": 1, "next": None})
    assert "dismissed: Shipped twice" in " ".join(fake.florin("cost", "quarantine").stdout.split())
    fake.answer("POST", "/finance/v1/quarantine/dismiss", {"dismissed": ["r-1"], "reason": "Shipped twice"})
    done = fake.florin("cost", "dismiss", "r-1", "r-2", "--reason", "Shipped twice")
    assert done.stdout == "Dismissed r-1.\n"
    assert fake.asked[-1][2] == {"records": ["r-1", "r-2"], "reason": "Shipped twice"}

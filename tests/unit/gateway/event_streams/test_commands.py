"""florin events …"""

from __future__ import annotations

import json

STREAM = {
    "stream": "audit", "to": "https://siem.example", "begun": "2026-11-01T00:00:00Z", "waiting": 10_000,
    "more": True, "oldest": "2026-11-20T10:00:00Z", "lag_seconds": 90.0, "advanced": None,
    "failure": "status 503",
}  # fmt: skip
NONE = STREAM | {"stream": "usage", "to": None, "waiting": 0, "more": False, "oldest": None, "failure": None}


def test_the_status(fake):
    fake.answer("GET", "/admin/v1/events", {"data": [STREAM, NONE]})
    done = fake.florin("events", "status")
    assert done.exit_code == 0, done.output
    for shown in ("10,000+", "siem.example", "status 503", "no receiver", "never"):
        assert shown in done.output
    assert "FLORIN_AUDIT_EVENTS_TO" not in done.output
    assert json.loads(fake.florin("events", "status", "--json").stdout)["data"] == [STREAM, NONE]
    fake.answer("GET", "/admin/v1/events", {"data": [NONE]})
    assert "FLORIN_AUDIT_EVENTS_TO" in fake.florin("events", "status").output


def test_a_replay(fake):
    fake.answer("POST", "/admin/v1/events/audit/replay", STREAM | {"queued": 1234})
    done = fake.florin("events", "replay", "audit", "--from", "2026-11-01")
    assert done.exit_code == 0, done.output
    assert "1,234 queued to be sent again." in done.output
    assert fake.asked[-1] == ("POST", "/admin/v1/events/audit/replay", {"since": "2026-11-01"})


def test_giving_up_has_to_be_confirmed(fake):
    fake.answer("POST", "/admin/v1/events/usage/skip", NONE | {"skipped": 5})
    refused = fake.florin("events", "skip", "usage", "--to", "2026-11-01")
    assert refused.exit_code == 2
    assert "--yes" in refused.output
    assert fake.asked == []
    done = fake.florin("events", "skip", "usage", "--to", "2026-11-01", "--yes", "--json")
    assert json.loads(done.stdout)["skipped"] == 5
    assert fake.asked[-1][2] == {"until": "2026-11-01"}

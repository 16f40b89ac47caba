"""florin audit: what is asked, and what is shown of the answers."""

from __future__ import annotations

import json

from gateway.installation.audit import commands as audit

ENTRY = {
    "id": "1700000000000-0",
    "recorded_at": "2023-11-14T22:13:20Z",
    "actor": "key:ab12",
    "actor_key": {"tenant": "acme", "role": "operator", "revoked": True},
    "action": "adapter.promote",
    "subject": "acme/support",
    "version": "v2",
    "details": {"live": {"old": "v1", "new": "v2"}},
}
ATTEMPT = {
    "attempt": 1, "tenant": "acme", "key_id": "k", "key_role": "tenant", "adapter": "acme/support",
    "version": "v2", "base_model": "base", "engine": "a1", "gpu_type": "H200", "gpu_count": 1,
    "dispatched": "2023-11-14T22:13:20.5Z", "first_token": None, "ended": "2023-11-14T22:13:21Z",
    "prompt_tokens": 12, "cached_tokens": None, "completion_tokens": 5, "reasoning_tokens": 0, "n": 1,
    "usage_source": "engine_final", "outcome": "ok", "billable": True, "loads": 0,
}  # fmt: skip


def page(*entries, next_=None, complete=True):
    return {"data": list(entries), "next": next_, "complete": complete}


def test_the_list_with_its_filters(fake):
    path = "/admin/v1/audit?subject=acme%2F%2A&actor=key%3Aab12&action=adapter.%2A&since=2023-11-14&limit=5"
    fake.answer("GET", path, page(ENTRY, {**ENTRY, "actor": "bootstrap", "actor_key": None}, next_="abc"))
    result = fake.florin(
        "audit", "list", "--subject", "acme/*", "--actor", "key:ab12", "--action", "adapter.*",
        "--since", "2023-11-14", "--limit", "5",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    heads, first, second = result.stdout.splitlines()
    assert heads.split() == ["at", "who", "action", "subject", "version", "details"]
    assert "key:ab12 (acme, operator, revoked)" in first
    assert '{"live": {"new": "v2", "old": "v1"}}' in first
    assert second.split()[1] == "bootstrap"
    assert "--cursor abc" in result.stderr


def test_an_empty_list_and_one_while_redis_is_away(fake):
    fake.answer("GET", "/admin/v1/audit?limit=50", page(complete=False))
    result = fake.florin("audit", "list")
    assert "No matching entries" in result.stderr
    assert "Redis is unavailable" in result.stderr


def test_following_shows_each_entry_once_oldest_first(fake, monkeypatch):
    entries = [
        {**ENTRY, "id": f"170000000000{n}-0", "recorded_at": f"2023-11-14T22:13:2{n}Z"} for n in range(4)
    ]
    fake.answer("GET", "/admin/v1/audit?limit=50", page(*entries[1::-1]))
    later = "/admin/v1/audit?since=2023-11-14T22%3A13%3A21Z&limit=1000"
    fake.answer("GET", later, page(*entries[3:0:-1]))
    fake.answer("GET", later.replace("%3A21Z", "%3A23Z"), page(entries[3]))
    looks = iter(range(3))

    def wait(_):
        if next(looks, None) is None:
            raise KeyboardInterrupt

    monkeypatch.setattr(audit.time, "sleep", wait)
    result = fake.florin("audit", "list", "--follow", "--json")
    assert result.exit_code == 0
    shown = json.JSONDecoder()
    found, rest = [], result.stdout.strip()
    while rest:
        one, end = shown.raw_decode(rest)
        found.append(one["id"])
        rest = rest[end:].strip()
    assert found == [e["id"] for e in entries]


def test_attempts_of_a_request(fake):
    path = "/admin/v1/audit/requests/req-1"
    told = {"request_id": "req-1", "attempts": [ATTEMPT], "complete": True}
    fake.answer("GET", path, told)
    result = fake.florin("audit", "request", "req-1")
    line = result.stdout.splitlines()[1]
    assert line.split()[:6] == ["1", "acme", "acme/support@v2", "a1", "H200", "ok"]
    fake.answer("GET", path, told | {"attempts": [], "complete": False})
    result = fake.florin("audit", "request", "req-1")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "has no attempt" in result.stderr
    error = {
        "failed_at": 1_700_000_000_000_000, "code": "rate_limit_exceeded", "status": 429, "request_id": "req-1",
        "adapter": "", "key": "ab12", "tenant": "acme",
    }  # fmt: skip
    fake.answer("GET", path, told | {"attempts": [], "complete": False, "error": error})
    result = fake.florin("audit", "request", "req-1")
    for word in ("rate_limit_exceeded", "429", "2023-11-14 22:13:20Z", "acme", "retry-after"):
        assert word in result.stdout
    assert "refused before it reached an engine" in result.stderr
    fake.answer("GET", path, told | {"attempts": [], "complete": False})
    assert json.loads(fake.florin("audit", "request", "req-1", "--json").stdout)["attempts"] == []

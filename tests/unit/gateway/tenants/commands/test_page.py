"""What an operator reads of one tenant."""

from __future__ import annotations

import time

from gateway.fleet.adapters.schemas.adapters import Adapter, Canary
from gateway.tenants.keys.schemas import Key
from gateway.tenants.schemas.limit_dry_run import DryRunLimit, LimitDryRun
from gateway.tenants.schemas.tenants import Queue, RequestError, TenantPage
from tests.support.samples import sample

KEY = sample(Key, id="k1", label="checkout")
ADAPTER = sample(
    Adapter,
    adapter="acme/support",
    live="v1",
    canary=sample(Canary, version="v2", weight=10),
    versions=["v1", "v2"],
    placed=[
        {"engine": "a1", "state": "resident", "version": "v1"},
        {"engine": "a1", "state": "resident", "version": "v2"},
        {"engine": "b1", "state": "loading", "version": "v1"},
    ],
    trouble=[{"version": "v2", "state": "quarantined", "reason": "It answers like base."}],
)
ERROR = sample(RequestError, code="engine_failed", status=502, adapter="acme/support@v1", key="k1")
QUEUE = sample(Queue, waiting=3, in_flight=1200, longest_wait=2.345, served_share=0.125)


def page(**more):
    now = int(time.time() * 1e6)
    fields = {
        "name": "acme",
        "limits": {"requests_per_minute": 60},
        "usage": [],
        "queue": QUEUE,
        "adapters": [ADAPTER],
        "keys": [{**KEY, "last_used": now - 185_000_000}],
        "errors": [
            {**ERROR, "failed_at": now - 60_000_000 * n, "request_id": f"req-{n}"} for n in range(1, 13)
        ],
    }
    return sample(TenantPage, **fields | more)


def shown(fake, body) -> list[str]:
    fake.answer("GET", "/admin/v1/tenants/acme", body)
    result = fake.florin("tenant", "show", "acme")
    assert result.exit_code == 0, result.stderr
    return [" ".join(line.split()) for line in result.stdout.splitlines()]


def test_the_page_of_a_tenant(fake):
    lines = shown(fake, page())
    assert "limits 60 requests per minute" in lines
    assert "acme/support v1 v2, 10 % 2 a1 v2 is quarantined" in lines
    (key,) = (line for line in lines if line.startswith("k1 "))
    assert "checkout" in key
    assert "3m ago" in key
    errors = [line for line in lines if "engine_failed" in line]
    assert errors[0] == "1m ago 502 engine_failed acme/support@v1 k1 req-1"
    assert len(errors) == 10
    assert "and 2 more: --json lists them." in lines
    assert "florin adapter show acme/support # why versions are not served" in lines
    assert "florin tenant suspend acme # refuse its requests" in lines
    assert not any("Limits and budgets" in line for line in lines)
    assert (
        "3 waiting, the oldest for 2.3 s; 1,200 on engines, through the worker that answered; 12% of the "
        "tokens served in the last minutes"
    ) in lines


def test_limits_and_what_is_used_of_them(fake):
    usage = [
        {"limit": "requests_per_minute", "used": 45, "allowed": 60, "resets": 1_795_000_000},
        {"limit": "money_per_month", "used": "12.50", "allowed": "50", "resets": 1_795_000_000},
        {"limit": "tokens_per_day", "used": None, "allowed": 1000, "resets": 1_795_000_000},
        {"limit": "concurrent", "used": 0, "allowed": 4, "resets": None},
    ]
    lines = shown(fake, page(usage=usage))
    assert "tenant requests per minute 45 60 75 2026-11-18 11:06:40Z" in lines
    assert "tenant money per month 12.50 50 25 2026-11-18 11:06:40Z" in lines
    assert "tenant tokens per day - 1,000 - 2026-11-18 11:06:40Z" in lines
    assert "tenant concurrent 0 4 0 -" in lines
    shadow = {"limit": "tokens_per_day", "level": "end user", "used": None, "allowed": 9, "would_refuse": 3}
    lines = shown(fake, page(usage=[*usage, shadow | {"resets": None}]))
    assert "end user tokens per day - 9 - - 3" in lines


def test_a_new_tenant_is_told_what_comes_next(fake):
    idle = QUEUE | {"waiting": 0}
    lines = shown(fake, page(usage=None, queue=idle, adapters=[], keys=[], errors=[]))
    assert any(line.startswith("0 waiting; ") for line in lines)
    assert "None in the last seven days." in lines
    assert "florin key create --tenant acme # its first key" in lines
    assert "florin adapter add acme/NAME --source DIR # its first adapter" in lines


def test_a_suspended_tenant_is_resumed_first(fake):
    lines = shown(fake, page(suspended=1_700_000_000_000_000))
    assert "state suspended since 2023-11-14 22:13:20Z" in lines
    following = lines[lines.index("Next:") + 1]
    assert following == "florin tenant resume acme # serve it again"
    assert not any("florin tenant suspend" in line for line in lines)


def test_a_dry_run_of_limits_says_whom_they_would_have_refused_and_how_far_it_got(fake):
    refused = [{"name": "ann", "would_refuse": 1200}]
    limits = [
        sample(DryRunLimit, limit="user:tokens/5h=200000", would_refuse=1200, most_refused=refused, until=9),
        sample(DryRunLimit, limit="concurrent=4", most_refused=[], until=5_000_000),
    ]
    tried = sample(LimitDryRun, tenant="acme", end=5_000_000, limits=limits)
    fake.answer("POST", "/admin/v1/tenants/acme/limits-dry-run", tried)
    result = fake.florin("tenant", "try-limits", "acme", "--limit", "user:tokens/5h=200k")
    assert "ann (1,200)" in result.stdout
    assert "user:tokens/5h=200000: too many records" in result.stderr
    assert "concurrent=4:" not in result.stderr

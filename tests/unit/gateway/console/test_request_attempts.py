from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from gateway.console.pages.requests.attempts import Decided, DecidedAttempts, attempts, cost
from gateway.console.pages.requests.one import next_step
from gateway.console.pages.requests.recent import ShownError
from gateway.console.pages.search import adapter_hits, group, key_hits, only_exact
from gateway.costs.reports.schemas.usage import RequestCost
from gateway.fleet.adapters.schemas.adapters import Adapter
from gateway.schemas.finance import UsageRecord
from gateway.tenants.keys.schemas import Key
from tests.support.samples import sample


def record(attempt: int = 1, **changes: Any) -> UsageRecord:
    base = {
        "attempt": attempt, "adapter": "acme/support", "version": "v1", "base_model": "base", "engine": "a",
        "gpu_type": "h100", "dispatched": 2_000_000, "first_token": 2_500_000, "ended": 4_000_000,
        "prompt_tokens": 10, "cached_tokens": 4, "completion_tokens": 7, "reasoning_tokens": 0,
        "usage_source": "engine_final", "outcome": "ok", "billable": True, "adapter_loads": 1,
    }  # fmt: skip  # as the API says it
    return UsageRecord.read(sample(UsageRecord, **base | changes))


def decided(**changes: Any) -> dict[int, Decided]:
    fields = {
        "attempt": 1, "decided_at": 1_000_000, "engine": "a", "picked": "a", "action": "load", "cost_ms": 220.0,
        "fleet": 3, "considered": [["a", "load", 220.0]],
    }  # fmt: skip
    answer = sample(DecidedAttempts, data=[sample(Decided, **fields | changes)])
    return DecidedAttempts.read(answer).by_attempt


def test_times_share_one_scale():
    failed = record(
        dispatched=1_500_000, first_token=None, ended=2_000_000, outcome="failover", billable=False
    )
    first, second = attempts([failed, record(2)], decided())
    assert [(p.name, p.start, round(p.width, 3)) for p in first.parts] == [
        ("On the engine", 500_000 * 100 / 3_000_000, 16.667),
    ]
    assert [p.name for p in second.parts] == ["Until the first token", "Answer"]
    assert (second.first, second.total, second.decision) == (0.5, 2.0, None)
    assert (first.outcome, first.tone, first.billable) == ("failed over", "warn", False)
    assert first.decision is not None
    assert first.decision.others == 2
    assert "load the version; expected delay 220 ms" in first.decision.says


def test_waiting_is_told_apart_from_loading():
    waited = {"search_ms": 900.0, "queue_ms": 300.0, "load_ms": 500.0}
    [shown] = attempts(
        [record(outcome="new", engine=None)], decided(decided_at=1_990_000, cost_ms=-0.6, **waited)
    )
    assert [(p.name, round(p.seconds, 3)) for p in shown.parts] == [
        ("In the queue", 0.3),
        ("Looking for an engine", 0.1),
        ("Loading the adapter", 0.5),
        ("Until the first token", 0.5),
        ("Answer", 1.5),
    ]
    assert shown.decision is not None
    assert shown.decision.says.endswith("expected delay 0 ms.")  # a preference
    assert (shown.engine, shown.outcome) == ("", "new")  # no word of ours; a tenant's record has no engine
    assert shown.parts[0].start == 0.0
    [skewed] = attempts([record()], decided(decided_at=2_500_000, **waited | {"queue_ms": 5000.0}))
    assert [p.name for p in skewed.parts] == ["In the queue", "Until the first token", "Answer"]


PRICED = sample(RequestCost, currency="USD", priced_by="cost", pending="", cost="0.20", complete=True)


@pytest.mark.parametrize(
    ("changes", "title", "note"),
    [
        ({}, "Cost", "exact"),
        ({"pending": "hour_not_over"}, "Cost, so far", "until the hour is over"),
        ({"pending": "hour_not_computed"}, "Cost, so far", "estimate"),
        ({"complete": False}, "Cost, so far", "estimate"),
        ({"pending": "hour_set_aside"}, "Cost, in part", "set aside"),
        ({"pending": "records_removed"}, "Cost, in part", "past retention"),
        ({"priced_by": "rate_card"}, "Price", "tokens"),
        ({"retry_waste": "0.05"}, "Cost", "repeated attempts: 0.05 USD more"),
    ],
)
def test_a_cost_says_whether_it_is_final(changes: dict[str, Any], title: str, note: str):
    found = cost(RequestCost.read(PRICED | changes))
    assert (found.title, found.amount, found.currency) == (title, Decimal("0.20"), "USD")
    assert note in found.note


def test_a_cost_without_a_price_says_so():
    found = cost(RequestCost.read(PRICED | {"cost": None, "currency": None}))
    assert (found.amount, found.currency) == (None, "")
    assert "no price" in found.note
    lost = cost(RequestCost.read(PRICED | {"cost": None, "pending": "records_removed"}))
    assert (lost.title, lost.amount) == ("Cost", None)
    assert "past retention" in lost.note


def test_an_exact_hit_leads_on_unless_there_are_several():
    fields = {"live": "v1", "versions": ["v1"]}
    adapters = [Adapter.read(sample(Adapter, adapter=f"acme/a{n}", **fields)) for n in range(20)]
    hits = group("Adapters", [*adapter_hits(adapters, "acme/a1")])
    assert (hits.hits[0].title, len(hits.hits), hits.more) == ("acme/a1", 11, 0)
    assert (group("Adapters", adapter_hits(adapters, "acme")).more) == 8
    assert only_exact([hits]) == "/console/adapters/acme/a1"
    assert only_exact([hits, hits]) is None
    assert not any(hit.exact for hit in adapter_hits(adapters, "acme/a7@v2"))


@pytest.mark.parametrize(
    ("code", "tenant", "href"),
    [
        ("budget_exhausted", None, "/console/tenants/acme"),
        ("rate_limit_exceeded", "acme", "/console/account"),
        ("model_not_found", None, "/console/adapters?tenant=acme"),
        ("model_not_found", "acme", "/console/adapters"),
        ("engine_failed", None, None),
    ],
)
def test_an_error_leads_to_where_its_cause_is(code: str, tenant: str | None, href: str | None):
    error = ShownError.read(sample(ShownError, code=code, tenant="" if tenant else "acme"))
    step = next_step(error, tenant)
    assert (step and step[1]) == href


def test_keys_are_found_by_id_and_label_and_a_whole_key_by_its_id():
    key = Key.read(sample(Key, id="ab12", label="ci", role="tenant", tenant="acme"))
    assert [hit.exact for hit in key_hits([key], "ab12")] == [True]
    assert [hit.title for hit in key_hits([key], "CI")] == ["ci"]
    assert [hit.exact for hit in key_hits([key], "fl_ab12_secret")] == [True]

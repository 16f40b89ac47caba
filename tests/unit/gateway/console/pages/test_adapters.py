"""The figures and forms of the console's adapters."""

from __future__ import annotations

import pytest

from gateway.console.api_client import ApiError
from gateway.console.pages.adapters import rows
from gateway.console.pages.adapters.evaluating import plan
from gateway.console.pages.adapters.release import promotion
from gateway.fleet.adapters.schemas.adapters import AdapterDetails
from tests.support.samples import sample

ARM = {
    "requests": 100,
    "failures": 0,
    "error_rate": 0.0,
    "first_token": {"p50": 0.1, "p95": 0.2},
    "per_token": {"p50": 0.01, "p95": None},
}
CANARY = {"version": "v2", "weight": 10, "guard": None, "held": None}


def adapter_of(**fields):
    known = {
        "adapter": "acme/support",
        "live": "v1",
        "loaded": True,
        "base_model": "base",
        "version_details": [],
    }
    return AdapterDetails.read(sample(AdapterDetails, **known | fields))


ADAPTER = adapter_of()


def promoted(**fields):
    return promotion(lambda name: fields.get(name, ""))


def test_a_promotion_says_what_its_form_says():
    assert promoted(version="v2", wait="1") == {"version": "v2", "weight": 100, "wait": True}
    assert promoted(version="v2", weight="100", guard="hold")["weight"] == 100  # which needs no guard
    assert "guard" not in promoted(version="v2", weight="100", guard="hold")
    assert promoted(version="v2", weight="5", guard="none")["guard"] is None
    guard = promoted(version="v2", weight="5", guard="hold", max_error_percent="2,5", window_minutes="1.5")[
        "guard"
    ]
    assert guard == {"action": "hold", "max_error_rate": 0.025, "window_seconds": 90}
    found = promoted(version="v2", require_eval_of="AB", force="1", then="")
    assert (found["require_eval"], found["require_eval_of"], found["force"]) == (True, "ab", True)


@pytest.mark.parametrize(
    ("field", "value"),
    [("weight", "101"), ("weight", "-1"), ("weight", "\u0661"), ("then", "5;6"), ("window_minutes", "inf")],
)
def test_what_is_no_number_is_refused_by_name(field, value):
    with pytest.raises(ApiError) as refused:
        promoted(version="v2", guard="hold", **{"weight": "5", field: value})
    assert refused.value.status == 400
    assert refused.value.param


def test_a_canary_is_worse_where_its_guard_says_so():
    slow = ARM | {"error_rate": 0.02, "first_token": {"p50": 0.14, "p95": 0.4}}
    arms = {"live": ARM, "canary": slow, "verdict": None, "reason": None}
    worse = {row["title"] for row in rows.compared(adapter_of(canary=CANARY, comparison=arms)) if row["tone"]}
    assert worse == {"Failed", "First token, 95th percentile"}
    lenient = CANARY | {
        "guard": {"action": "hold", "max_error_rate": 0.05, "max_latency_ratio": 3, "then": [5, 50, 100]}
    }
    adapter = adapter_of(canary=lenient, comparison=arms)
    assert not any(row["tone"] for row in rows.compared(adapter))
    assert rows.steps(adapter) == [(10, "now"), (50, "later"), (100, "later")]
    assert rows.compared(ADAPTER) == []
    empty = ARM | {"requests": 0, "error_rate": None, "first_token": {"p50": None, "p95": None}}
    adapter = adapter_of(canary=CANARY, comparison=arms | {"canary": empty})
    assert rows.compared(adapter)[2]["ratio"] is None


def test_the_state_is_that_of_the_live_version_and_the_rest_is_noted():
    assert rows.state_cell(ADAPTER).tone == "good"
    other = {"version": "v2", "state": "failed", "reason": "No."}
    cell = rows.state_cell(adapter_of(trouble=[other]))
    assert (cell.value, cell.tone, cell.note) == ("loaded", "warn", "v2 is failed: No.")
    cell = rows.state_cell(adapter_of(trouble=[other | {"version": "v1"}]))
    assert (cell.value, cell.tone) == ("failed", "bad")
    held = rows.state_cell(adapter_of(canary=CANARY | {"held": "Slow."}))
    assert (held.tone, held.note) == ("warn", "v2 is held: Slow.")
    assert rows.state_cell(adapter_of(live=None, loaded=False)).value == "no live version"


def test_an_evaluation_sends_only_what_its_metric_takes():
    def form(**fields):
        return plan(lambda name: fields.get(name, ""), "{}")

    assert form(metric="exact", pattern="left over") == {"data": "{}", "metric": "exact"}
    assert form(metric="regex", pattern="x", threshold="0.9")["pattern"] == "x"
    assert form(threshold="0,9", limit="3") == {"data": "{}", "metric": "exact", "threshold": 0.9, "limit": 3}
    with pytest.raises(ApiError):
        plan(lambda _: "", "  ")

"""The figures and forms of the console's adapters."""

from __future__ import annotations

import pytest

from gateway.console.api_client import ApiError
from gateway.console.pages.adapters import rows
from gateway.console.pages.adapters.evaluating import plan
from gateway.console.pages.adapters.registering import registered
from gateway.console.pages.adapters.release import promotion, switched
from gateway.fleet.adapters.schemas.adapters import AdapterDetails, PromotedAdapter, RegisteredVersion
from gateway.fleet.placement.schemas import EnginePlacement, PlacedVersion
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


def test_the_list_is_narrowed_as_the_url_says():
    cold = adapter_of(adapter="bolt/x", loaded=False, base_model="other")
    both = [ADAPTER, cold]
    for query, shown in (
        ({}, both), ({"tenant": "acme"}, [ADAPTER]), ({"base": "other"}, [cold]), ({"show": "cold"}, [cold]),
        ({"show": "loaded"}, [ADAPTER]), ({"show": "trouble"}, []), ({"show": "rubbish"}, both),
    ):  # fmt: skip
        assert rows.narrowed(both, query) == shown


def test_when_an_adapter_was_last_used():
    uses = (("a@v1", 0, 5.0), ("a@v2", 0, 2.0), ("b@v1", 1, None), ("c@v1", 0, None), ("a@v3", 0, 9.0))
    placements = [sample(PlacedVersion, version=v, in_flight=n, idle_seconds=idle) for v, n, idle in uses]
    engine, now = EnginePlacement.read(sample(EnginePlacement, placements=placements)), 10_000_000
    assert rows.last_used([engine], now) == {"a": 8_000_000, "b": now}


def test_evidence_of_any_shape_is_shown():
    figures = {"distance_to_base": 0.0, "first": {"engine": "a"}, "none": None}
    single, several = rows.evidence({**figures, "answers": [{"prompt": "x"}, {"here": "y"}]})
    assert single == [("Distance to base", 0.0), ("First", "engine a")]
    assert several == [
        {"title": "Answers", "columns": ["prompt", "here"], "rows": [["x", None], [None, "y"]]}
    ]
    assert rows.evidence(None) == ([], [])


def test_what_an_action_did_is_said():
    promoted = sample(PromotedAdapter, **ADAPTER.body | {"canary": CANARY, "warnings": ["Fewer engines."]})
    assert switched(PromotedAdapter.read(promoted)).endswith("the other 90 %. Warning: Fewer engines.")
    added = sample(RegisteredVersion, version="v2", live="v1", created=True)
    assert "until it is promoted" in registered(RegisteredVersion.read(added))


def test_an_evaluation_sends_only_what_its_metric_takes():
    def form(**fields):
        return plan(lambda name: fields.get(name, ""), "{}")

    assert form(metric="exact", pattern="left over") == {"data": "{}", "metric": "exact"}
    assert form(metric="regex", pattern="x", threshold="0.9")["pattern"] == "x"
    assert form(threshold="0,9", limit="3") == {"data": "{}", "metric": "exact", "threshold": 0.9, "limit": 3}
    with pytest.raises(ApiError):
        plan(lambda _: "", "  ")

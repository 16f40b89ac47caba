from __future__ import annotations

import pytest

from adapters.model import Placement, SlotState, dump
from adapters.placement import residency as module
from adapters.placement.residency import Residency
from adapters.store.protocol.registry import Event

CACHED, LEAVING, LOADING, LOST, RESIDENT = (
    SlotState.CACHED,
    SlotState.LEAVING,
    SlotState.LOADING,
    SlotState.LOST,
    SlotState.RESIDENT,
)


def residency(*placements: Placement, now: float = 0.0) -> Residency:
    found = Residency(lambda: now)
    found.load({"placement": {p.id: dump(p) for p in placements}})
    return found


def test_only_what_is_resident_takes_requests():
    view = residency(
        Placement("e1", "a", CACHED),
        Placement("e2", "a", LOADING),
        Placement("e3", "a", LOST),
        Placement("e4", "a", LEAVING, for_ms=5000),
        Placement("e5", "a", RESIDENT),
    )
    assert (view.holders("a"), view.cached("a"), view.loading("a")) == (["e5"], ["e1"], ["e2"])
    assert [e for e in ("e1", "e2", "e3", "e4", "e5") if view.holds(e, "a")] == ["e5"]
    assert view.where("a") == {"e1": CACHED, "e2": LOADING, "e3": LOST, "e4": LEAVING, "e5": RESIDENT}


def test_cached_versions_hold_no_slot():
    view = residency(Placement("e1", "a", CACHED), Placement("e1", "b", LOST))
    assert view.placed("e1") == {"a": CACHED, "b": LOST}
    assert view.slots("e1") == {"b": LOST}
    assert view.engines() == {"e1"}


def test_what_an_engine_holds_is_live():
    view = residency(Placement("e1", "a", CACHED))
    held, other = view.held("e1"), view.held("e2")
    view.apply(Event(1, "placement", "e2/a", dump(Placement("e2", "a", RESIDENT))))
    view.apply(Event(2, "placement", "e1/a", None))
    assert (list(held), list(other)) == ([], ["a"])
    view.load({"placement": {"e1/b": dump(Placement("e1", "b", CACHED))}})
    assert (list(held), list(other)) == (["b"], [])
    assert view.where("a") == {}


def test_loads_in_progress_are_counted():
    view = residency(
        Placement("e1", "a", LOADING), Placement("e1", "b", LOADING), Placement("e1", "c", CACHED)
    )
    held = view.held("e1")
    assert held.loading == 2
    view.place("e1", "a", Placement("e1", "a", RESIDENT))
    view.place("e1", "b", Placement("e1", "b", LOADING, owner="another"))
    assert held.loading == 1
    view.place("e1", "b", None)
    view.place("e1", "b", None)
    assert held.loading == 0
    view.place("e1", "c", Placement("e1", "c", LOADING))
    view.load({"placement": {}})
    assert (held.loading, dict(held)) == (0, {})


def placed(version: str, verified: str = "", state: SlotState = SlotState.RESIDENT) -> Event:
    placement = Placement("e1", version, state, verified=verified)
    return Event(1, "placement", placement.id, dump(placement))


def test_a_verified_load_is_remembered_after_its_eviction_and_through_a_snapshot():
    residency = Residency()
    residency.apply(placed("a", "p1"))
    residency.apply(placed("a", state=SlotState.LEAVING))
    residency.apply(Event(1, "placement", "e1/a", None))
    here = Placement("e1", "b", SlotState.RESIDENT, verified="p1")
    residency.load({"placement": {here.id: dump(here)}})
    assert [residency.verified("e1", version) for version in "abc"] == ["p1", "p1", ""]
    assert residency.verified("e2", "a") == ""
    residency.apply(placed("a", "p2"))
    assert residency.verified("e1", "a") == "p2"


def test_the_least_recently_loaded_versions_are_forgotten(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "_MAX_VERIFIED", 3)
    residency = Residency()
    for version in "abcad":
        residency.apply(placed(version, "p1"))
    assert [version for version in "abcd" if residency.verified("e1", version)] == ["a", "c", "d"]

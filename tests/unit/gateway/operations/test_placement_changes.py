from __future__ import annotations

from adapters.placement.placement_log import PlacementChange
from gateway.operations.placement_changes import explained

V, W = "acme/support@v1", "acme/sales@v1"


def test_each_change_says_why_if_anyone_knows():
    changes = [
        PlacementChange(20_000_000, "a", V, "loaded", seconds=1.5),
        PlacementChange(18_000_000, "a", W, "evicted", room_for=V),
        PlacementChange(9_000_000, "b", V, "unloaded"),
        PlacementChange(8_000_000, "b", W, "loaded"),
    ]
    moves = [
        {"at": 20_100_000, "kind": "replicate", "version": V, "engine": "a", "why": "demand"},
        {"at": 9_000_100, "kind": "drop", "version": V, "engine": "b", "why": "idle"},
        {"at": 90_000_000, "kind": "prefetch", "version": W, "engine": "b", "why": "much later"},
        {"at": 8_000_000, "kind": "drop", "version": W, "engine": "b", "why": "of another kind"},
    ]
    told = explained(changes, moves)
    assert [c["why"] for c in told] == ["demand", f"to make room for {V}", "idle", None]
    assert told[0] == {
        "at": 20_000_000,
        "engine": "a",
        "version": V,
        "kind": "loaded",
        "seconds": 1.5,
        "why": "demand",
    }

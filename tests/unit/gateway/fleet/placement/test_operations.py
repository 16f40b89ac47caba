from __future__ import annotations

from adapters.placement.placement_log import PlacementChange
from gateway.fleet.placement.operations import explained
from gateway.fleet.placement.schemas import PlannerMove

V, W = "acme/support@v1", "acme/sales@v1"


def test_each_change_says_why_if_anyone_knows():
    changes = [
        PlacementChange(20_000_000, "a", V, "loaded", seconds=1.5),
        PlacementChange(18_000_000, "a", W, "evicted", room_for=V),
        PlacementChange(9_000_000, "b", V, "unloaded"),
        PlacementChange(8_000_000, "b", W, "loaded"),
    ]
    moves = [
        PlannerMove(moved_at=20_100_000, kind="replicate", version=V, engine="a", why="demand"),
        PlannerMove(moved_at=9_000_100, kind="drop", version=V, engine="b", why="idle"),
        PlannerMove(moved_at=90_000_000, kind="prefetch", version=W, engine="b", why="much later"),
        PlannerMove(moved_at=8_000_000, kind="drop", version=W, engine="b", why="of another kind"),
    ]
    answers = explained(changes, moves)
    assert [change.why for change in answers] == ["demand", f"to make room for {V}", "idle", None]
    assert (answers[0].kind, answers[0].version, answers[0].seconds) == ("loaded", V, 1.5)

from __future__ import annotations

from dataclasses import replace

import pytest

from adapters.model import Drain, Engine, SlotState
from adapters.placement.planned_fleet import (
    FleetSnapshot,
    Move,
    PlacedVersion,
    PlannedEngine,
    PlannedVersion,
)
from adapters.placement.planner import plan
from adapters.reconcile.merged_engines import due

M = Engine("m", "http://m", "base", "h100", 1, 8, serves="acme/a@v1", merged_as="fl-1")
CORDONED = replace(M, state="cordoned")
DRAINING = replace(M, state="draining", drain=Drain(9))
RESTS = replace(M, state="draining", drain=Drain(0, moved=True))


@pytest.mark.parametrize(
    ("engine", "live", "expected"),
    [
        pytest.param(M, True, M, id="it serves"),
        pytest.param(M, False, RESTS, id="its version is not live any more"),
        pytest.param(RESTS, False, RESTS, id="it rests"),
        pytest.param(RESTS, True, M, id="its version is live again"),
        pytest.param(
            replace(M, state="draining"), True, replace(M, state="draining"), id="drained by an operator"
        ),
        pytest.param(DRAINING, False, DRAINING, id="being drained by an operator"),
        pytest.param(CORDONED, False, CORDONED, id="cordoned by an operator"),
    ],
)
def test_it_rests_while_its_version_is_not_live(engine: Engine, live: bool, expected: Engine):
    assert due(engine, live=live) == expected
    assert engine.rests == (engine == RESTS)


def test_the_planner_has_it_compared_and_never_drops_it_for_another():
    engines = (
        PlannedEngine("a", 2, 8, "h1"),
        PlannedEngine("m", 1, 8, "h2", only="v"),
        PlannedEngine("t", 1, 8, "h3", only=""),
    )
    pinned = PlannedVersion("other", min_replicas=3)
    moves = plan(FleetSnapshot(engines, (PlannedVersion("v"), pinned)))
    assert moves[0] == Move("prefetch", "v", "m", "merged into its weights")
    assert {move.engine for move in moves[1:]} == {"a"}, "nothing else fits"
    newer = PlannedVersion("v", release=(0, 33))
    assert [move.engine for move in plan(FleetSnapshot(engines, (newer,)))] == ["m"], "it needs no kernels"
    capped = PlannedVersion("v", max_replicas=0)
    assert plan(FleetSnapshot(engines, (capped,))) == ()


@pytest.mark.parametrize(
    ("state", "loaded_on"), [(None, ["m", "a"]), (SlotState.LOADING, ["a"]), (SlotState.RESIDENT, [])]
)
def test_it_counts_for_the_minimum_once_it_was_compared(state: SlotState | None, loaded_on: list[str]):
    """Which needs an engine that loads the version."""
    merged = PlannedEngine("m", 1, 8, "h2", only="v", held={"v": PlacedVersion(state)} if state else {})
    snapshot = FleetSnapshot((PlannedEngine("a", 2, 8, "h1"), merged), (PlannedVersion("v", min_replicas=1),))
    assert [move.engine for move in plan(snapshot)] == loaded_on
    alone = replace(snapshot, versions=(PlannedVersion("v", min_replicas=1, max_replicas=1),))
    assert [move.engine for move in plan(alone)] == loaded_on[:1] if state is None else not plan(alone)

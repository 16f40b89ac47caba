from __future__ import annotations

import pytest

from adapters.model import Placement, SlotState, dump
from adapters.placement.placement_log import KEPT, PlacementLog, kind_of
from adapters.placement.residency import Residency
from adapters.registry.catalog import Catalog
from adapters.store.protocol.registry import Event

CACHED, LEAVING, LOADING, LOST, RESIDENT = (
    SlotState.CACHED,
    SlotState.LEAVING,
    SlotState.LOADING,
    SlotState.LOST,
    SlotState.RESIDENT,
)


class World:
    """Applies events as the follower does: to the log first."""

    def __init__(self) -> None:
        self.now = 0
        self.residency = Residency()
        self.log = PlacementLog(self.residency, Catalog(), lambda: self.now)

    def heard(self, engine: str, version: str, state: SlotState | None, *, after: int = 0) -> None:
        self.now += after
        data = dump(Placement(engine, version, state)) if state else None
        event = Event(1, "placement", f"{engine}/{version}", data)
        self.log.apply(event)
        self.residency.apply(event)

    def told(self) -> list[tuple[str, str, str]]:
        return [(c.engine, c.version, c.kind) for c in self.log.latest()]


def test_a_load_is_told_with_the_time_that_it_took():
    world = World()
    world.heard("e1", "a", LOADING)
    world.heard("e1", "a", RESIDENT, after=1_500_000)
    world.heard("e1", "b", LOADING)
    world.heard("e1", "b", None, after=300_000)
    assert world.told() == [
        ("e1", "b", "not_loaded"),
        ("e1", "b", "loading"),
        ("e1", "a", "loaded"),
        ("e1", "a", "loading"),
    ]
    assert [c.seconds for c in world.log.latest()] == [0.3, None, 1.5, None]


def test_what_lost_its_slot_names_who_got_it():
    world = World()
    for name in ("a", "b", "c"):
        world.heard("e1", name, RESIDENT)
    world.heard("e2", "x", RESIDENT)
    world.heard("e1", "a", None, after=1_000_000)  # both for one claim: out of memory, and out of its slot
    world.heard("e1", "b", CACHED)
    world.heard("e1", "d", LOADING)
    world.heard("e2", "x", None)
    assert [(c.version, c.room_for) for c in world.log.latest()[:4]] == [
        ("x", ""),
        ("d", ""),
        ("b", "d"),
        ("a", "d"),
    ]
    world.heard("e1", "c", None, after=1_000_000)
    world.heard("e1", "d", RESIDENT, after=1_000_000)
    world.heard("e1", "b", RESIDENT)
    assert [(c.version, c.kind, c.room_for) for c in world.log.latest()[:3]] == [
        ("b", "activated", ""),
        ("d", "loaded", ""),
        ("c", "unloaded", ""),  # long before, by itself
    ]


@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [
        (RESIDENT, LEAVING, "leaving"),
        (LEAVING, RESIDENT, "kept"),
        (RESIDENT, LOST, "lost"),
        (LOST, RESIDENT, "loaded"),
        (LOST, LOADING, "loading"),
        (CACHED, None, "unloaded"),
        (RESIDENT, RESIDENT, None),
        (None, None, None),
    ],
)
def test_kinds(before: SlotState | None, after: SlotState | None, kind: str | None):
    assert kind_of(before, after) == kind


def test_it_is_bounded_and_survives_a_snapshot():
    world = World()
    for n in range(KEPT + 10):
        world.heard("e1", f"a{n}", RESIDENT)
    world.heard("e1", "z", LOADING)
    world.residency.load({})
    world.log.load({})
    world.heard("e1", "z", RESIDENT)
    latest = world.log.latest()
    assert len(latest) == KEPT
    assert (latest[0].kind, latest[0].seconds) == ("loaded", None)
    world.log.apply(Event(1, "tenant", "acme", "{}"))
    assert len(world.log.latest()) == KEPT

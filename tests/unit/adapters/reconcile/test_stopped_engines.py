from __future__ import annotations

from dataclasses import replace

import pytest

from adapters.model import Engine, dump
from adapters.reconcile.stopped_engines import StoppedEngines, due
from adapters.registry.catalog import Catalog
from adapters.store.protocol.coordination import Fence
from adapters.store.protocol.registry import Change
from tests.doubles.memory_store import MemoryStore

HOUR = 3_600_000_000
E1 = Engine("e1", "http://e1", "base", "h100", slots=2, max_rank=8, agent="http://e1:9", stopping=True)


@pytest.mark.parametrize(
    ("engine", "living", "expected"),
    [
        (replace(E1, stopping=False), (), "nothing"),
        (E1, ("e1",), "nothing"),  # it drains
        (E1, (), replace(E1, stopped=5 * HOUR)),
        (replace(E1, stopped=5 * HOUR - 1), (), "nothing"),
        (replace(E1, stopped=4 * HOUR), (), None),
        (replace(E1, stopped=4 * HOUR), ("e1",), replace(E1, stopped=0)),  # it was out of earshot
    ],
)
def test_what_becomes_of_an_engine(engine, living, expected):
    found = {e.name: new for e, new in due([engine], living, now=5 * HOUR, after=HOUR)}
    assert found.get("e1", "nothing") == expected


def test_zero_keeps_it_for_ever():
    assert not list(due([replace(E1, stopped=1)], (), now=1000 * HOUR, after=0))


async def test_it_is_marked_and_forgotten_by_the_leader_with_a_note():
    store, catalog, now = MemoryStore(), Catalog(), [10 * HOUR]
    stopped = StoppedEngines(store, catalog, 1.0, now=lambda: now[0])
    fence = Fence("reconciler", await store.lead("reconciler", "w", 5000))
    old = dump(E1).replace('"stopped":0,', "")  # as a Florin before this one wrote it
    await store.commit([Change("engine", "e1", old)])

    async def look() -> Engine | None:
        await stopped.update(fence)
        catalog.load((await store.snapshot()).documents)
        return catalog.engines.get("e1")

    catalog.load((await store.snapshot()).documents)
    assert (await look()).stopped == 10 * HOUR
    now[0] += HOUR - 1
    assert (await look()).stopped == 10 * HOUR
    now[0] += 1
    assert await look() is None
    assert [(e.note.actor, e.note.action, e.note.subject) for e in await store.audit()] == [
        ("reconciler", "engine.remove", "e1")
    ]

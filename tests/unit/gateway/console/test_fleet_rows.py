from __future__ import annotations

from typing import Any

import pytest

from gateway.console.pages.fleet.rows import EngineRow, Slot, Slots, engine_rows, filtered
from gateway.fleet.engines.schemas.engines import Engine
from gateway.schemas.base import Json
from tests.support.samples import sample


def engine(name: str, **changes: Any) -> EngineRow:
    fields = {
        "gpu_type": "h100",
        "gpu_count": 2,
        "base": "llama",
        "health": "up",
        "slots": 4,
        "cpu_slots": 10,
    }
    return EngineRow.read(sample(Engine, name=name, **fields | changes))


def placed(version: str, state: str = "resident", in_flight: int = 0) -> Json:
    pinned = state == "resident"
    return sample(Slot, version=version, state=state, in_flight=in_flight, idle_seconds=75.0, pinned=pinned)


PLACEMENT = [
    placed("acme/support@v1", in_flight=3),
    placed("bolt/sales@v2", "loading"),
    placed("acme/old@v1", "cached"),
    placed("x9 (removed)", "lost"),
]
ROWS = engine_rows(
    [
        engine("a"),
        engine("b", health="down", reason="refused", gpu_type="l40s"),
        engine("c", stopping=True, state="active"),
    ],
    [Slots.read(sample(Slots, engine="a", placements=PLACEMENT))],
)


def test_slots_and_cpu_memory_are_told_apart():
    a, b, c = ROWS
    assert [s.version for s in a.held] == ["acme/support@v1", "bolt/sales@v2", "x9 (removed)"]
    assert [s.version for s in a.cached] == ["acme/old@v1"]
    assert (a.free, a.in_flight, a.cpu_room, a.gpus) == (1, 3, 6, "2 × h100")  # noqa: RUF001
    assert (a.held[0].says, a.held[1].says) == ("resident, 3 in flight, pinned", "loading, idle 1 min")
    assert (a.held[0].href, a.held[2].href) == ("/console/adapters/acme/support", "")
    assert (b.health_tone, b.reason, b.free) == ("bad", "refused", 4)
    assert (c.status, c.status_tone) == ("stopping", "warn")


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ({}, "abc"),
        ({"gpu": "l40s"}, "b"),
        ({"state": "not up"}, "b"),
        ({"state": "stopping"}, "c"),
        ({"q": "SALES acme"}, "a"),
        ({"q": "sales zzz"}, ""),
        ({"base": "other"}, ""),
    ],
)
def test_filters(query: dict[str, str], names: str):
    assert "".join(row.name for row in filtered(ROWS, query)) == names

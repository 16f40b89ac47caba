from __future__ import annotations

from typing import Any

import pytest

from gateway.console.pages.fleet.drain import DrainProgress
from gateway.console.pages.fleet.rows import EngineRow, Slot, Slots, engine_rows, feed, filtered, idle, tiles
from gateway.fleet.engines.schemas.engines import Engine
from gateway.fleet.placement.schemas import PlacementChange
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


def change(at: int, kind: str, version: str = "acme/support@v1", **more: Any) -> PlacementChange:
    fields = {"changed_at": at, "engine": "a", "version": version, "kind": kind}
    return PlacementChange.read(sample(PlacementChange, **fields | more))


def test_totals_count_the_last_minute():
    now = 1_000_000_000
    times = ((now - 1, "loaded"), (now - 2, "evicted"), (now - 3, "loading"), (now - 61_000_000, "loaded"))
    shown = [
        (tile.value, tile.note, tile.tone) for tile in tiles(ROWS, [change(*each) for each in times], now)
    ]
    assert shown[:2] == [("2 of 3", "", "warn"), ("3 of 12", "1 more in CPU memory", "")]
    assert shown[3:] == [("1", "1 evicted or unloaded", ""), ("1", "cordoned, draining or stopping", "")]
    assert (tiles([], [], now)[0].value, tiles([], [], now)[0].tone) == ("0 of 0", "")


def test_the_feed_tells_a_load_once():
    changes = [  # newest first
        change(9, "loading"),
        change(8, "evicted", "bolt/sales@v2", why="to make room for acme/support@v1"),
        change(7, "loaded", seconds=1.25),
        change(6, "loading"),
        change(5, "loading"),
        change(4, "not_loaded", "x9"),
    ]
    lines = feed(changes, most=10)
    assert [(line.at, line.what, line.note) for line in lines] == [
        (9, "is being loaded on", ""),
        (8, "left its slot for CPU memory on", "to make room for acme/support@v1"),
        (7, "was loaded on", "1.2 s"),
        (5, "is being loaded on", ""),
        (4, "could not be loaded on", ""),
    ]
    assert (lines[-1].href, lines[-1].tone) == ("", "bad")
    assert len(feed(changes, most=2)) == 2


def test_idle_is_told_in_steps():
    texts = [idle(seconds) for seconds in (None, 3, 47, 60, 7300, 9e5)]
    assert texts == ["", "used just now", "idle 40 s", "idle 1 min", "idle 2 h", "idle 10 d"]


@pytest.mark.parametrize(
    ("phase", "when", "text"),
    [
        ("serving", ["later", "later", "later"], ""),
        ("loading", ["now", "later", "later"], "1 adapter to go"),
        ("finishing", ["done", "now", "later"], "2 requests running"),
        ("drained", ["done", "done", "done"], "It keeps 3 adapters."),
    ],
)
def test_a_drain_has_three_steps(phase: str, when: list[str], text: str):
    move = {"version": "acme/a@v1", "to": "b", "replaces": "acme/z@v1", "idle_seconds": 1.0, "in_flight": 0}
    elsewhere = [{"version": "acme/b@v1", "engines": ["b", "c"]}]
    stays = [{"version": "acme/c@v1", "reason": "b: full"}]
    parts = {"moves": [move], "elsewhere": elsewhere, "stays": stays}
    drain = DrainProgress.read(sample(DrainProgress, phase=phase, in_flight=2, held=3, **parts))
    assert [step.when for step in drain.steps] == when
    assert "".join(step.text for step in drain.steps) == text
    assert [row.what for row in drain.plan] == [
        "Load on b, in place of acme/z@v1",
        "On b, c already",
        "Not loaded elsewhere: b: full",
    ]

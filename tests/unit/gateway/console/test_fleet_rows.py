from __future__ import annotations

from typing import Any

import pytest

from gateway.console.pages.fleet.drain import DrainProgress
from gateway.console.pages.fleet.rows import EngineRow, Slot, Slots, engine_rows, feed, filtered, idle, tiles
from gateway.fleet.engines.schemas.engines import Engine
from gateway.fleet.placement.schemas import PlacementChange
from gateway.schemas.base import Json
from tests.support.samples import sample

NOW = 1_000_000_000


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
    fields = {"at": at, "engine": "a", "version": version, "kind": kind}
    return PlacementChange.read(sample(PlacementChange, **fields | more))


def test_totals_count_the_last_minute():
    changes = [
        change(NOW - 1, "loaded"),
        change(NOW - 2, "evicted"),
        change(NOW - 3, "loading"),
        change(NOW - 61_000_000, "loaded"),
    ]
    shown = {tile.label: (tile.value, tile.note, tile.tone) for tile in tiles(ROWS, changes, NOW)}
    assert shown["Engines up"] == ("2 of 3", "", "warn")
    assert shown["Slots in use"][:2] == ("3 of 12", "1 more in CPU memory")
    assert shown["Loads in the last minute"][:2] == ("1", "1 evicted or unloaded")
    assert shown["Out of rotation"][0] == "1"
    assert tiles([], [], NOW)[0].value == "0 of 0"


def test_the_feed_tells_a_load_once():
    changes = [  # newest first
        change(9, "loading"),
        change(8, "evicted", "bolt/sales@v2", why="to make room for acme/support@v1"),
        change(7, "loaded", seconds=1.25),
        change(6, "loading"),
        change(5, "lost"),
        change(4, "loading", "acme/other@v1"),
        change(3, "not_loaded", "x9"),
    ]
    lines = feed(changes, most=10)
    assert [(line.at, line.what) for line in lines] == [
        (9, "is being loaded on"),
        (8, "left its slot for CPU memory on"),
        (7, "was loaded on"),
        (5, "was lost with the process of"),
        (4, "is being loaded on"),
        (3, "could not be loaded on"),
    ]
    assert [line.note for line in lines[1:3]] == ["to make room for acme/support@v1", "1.2 s"]
    assert (lines[-1].href, lines[-1].tone) == ("", "bad")
    assert len(feed(changes, most=2)) == 2


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, ""),
        (3, "used just now"),
        (47, "idle 40 s"),
        (60, "idle 1 min"),
        (7300, "idle 2 h"),
        (9e5, "idle 10 d"),
    ],
)
def test_idle_is_told_in_steps(seconds: float | None, text: str):
    assert idle(seconds) == text


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
    drain = DrainProgress.read(
        sample(
            DrainProgress,
            phase=phase,
            in_flight=2,
            held=3,
            moves=[move],
            elsewhere=[{"version": "acme/b@v1", "engines": ["b", "c"]}],
            stays=[{"version": "acme/c@v1", "reason": "b: full"}],
        )
    )
    assert [step.when for step in drain.steps] == when
    assert "".join(step.text for step in drain.steps) == text
    assert [row.what for row in drain.plan] == [
        "Load on b, in place of acme/z@v1",
        "On b, c already",
        "Not loaded elsewhere: b: full",
    ]

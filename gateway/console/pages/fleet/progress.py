"""A drain as people follow it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal
from urllib.parse import quote

Json = dict[str, Any]

_ORDER: Final = ("loading", "finishing", "drained")


@dataclass(frozen=True, slots=True)
class Step:
    title: str
    text: str
    at: Literal["done", "now", "later"]


@dataclass(frozen=True, slots=True)
class PlanRow:
    version: str
    href: str
    what: str
    """`Load on b, in place of acme/sales@v1`."""
    kind: Literal["move", "elsewhere", "stays"]
    idle_seconds: float | None = None
    in_flight: int | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    phase: str
    """`serving`: no drain."""
    steps: tuple[Step, ...]
    plan: tuple[PlanRow, ...]
    moves: int
    alone: bool
    """No other engine serves what this one does."""
    until: int | None

    @property
    def draining(self) -> bool:
        return self.phase != "serving"


def progress(status: Json) -> Progress:
    """`status`: as /admin/v1/engines/{name}/drain says."""
    phase = status["phase"]
    return Progress(
        phase,
        _steps(status),
        plan(status),
        len(status["moves"]),
        status["alone"] and phase != "drained",
        status["until"],
    )


def _steps(status: Json) -> tuple[Step, ...]:
    moves, running, held = len(status["moves"]), status["in_flight"], status["held"]
    reached = _ORDER.index(status["phase"]) if status["phase"] in _ORDER else -1
    said = (
        ("Load its adapters elsewhere", f"{_many(moves, 'adapter')} to go" if reached == 0 else ""),
        ("Finish its requests", f"{_many(running, 'request')} running" if reached == 1 else ""),
        ("Drained", f"It keeps {_many(held, 'adapter')}." if reached == 2 and held else ""),
    )
    return tuple(Step(title, text, _when(place, reached)) for place, (title, text) in enumerate(said))


def _when(place: int, reached: int) -> Literal["done", "now", "later"]:
    if place < reached or place == reached == len(_ORDER) - 1:
        return "done"
    return "now" if place == reached else "later"


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' * (count != 1)}"


def plan(status: Json) -> tuple[PlanRow, ...]:
    """A row for each adapter on the engine: what is to be loaded elsewhere first."""
    moves = [
        PlanRow(
            move["version"],
            _href(move["version"]),
            f"Load on {move['to']}" + (f", in place of {move['replaces']}" if move["replaces"] else ""),
            "move",
            move["idle_seconds"],
            move["in_flight"],
        )
        for move in status["moves"]
    ]
    there = [
        PlanRow(e["version"], _href(e["version"]), f"On {', '.join(e['engines'])} already", "elsewhere")
        for e in status["elsewhere"]
    ]
    stays = [
        PlanRow(s["version"], _href(s["version"]), f"Not loaded elsewhere: {s['reason']}", "stays")
        for s in status["stays"]
    ]
    return (*moves, *there, *stays)


def _href(version: str) -> str:
    return f"/console/adapters/{quote(version.partition('@')[0])}"

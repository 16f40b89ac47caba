"""A drain as people follow it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal
from urllib.parse import quote

from gateway.fleet.engines.schemas.engines import Drain

_ORDER: Final = ("loading", "finishing", "drained")


@dataclass(frozen=True, slots=True)
class Step:
    title: str
    text: str
    when: Literal["done", "now", "later"]


@dataclass(frozen=True, slots=True)
class PlanRow:
    version: str
    what: str
    """`Load on b, in place of acme/sales@v1`."""
    kind: Literal["move", "elsewhere", "stays"]
    idle_seconds: float | None = None
    in_flight: int | None = None

    @property
    def href(self) -> str:
        return f"/console/adapters/{quote(self.version.partition('@')[0])}"


class DrainProgress(Drain):
    """How far a drain is, or its plan."""

    @property
    def draining(self) -> bool:
        return self.phase != "serving"

    @property
    def steps(self) -> tuple[Step, ...]:
        reached = _ORDER.index(self.phase) if self.phase in _ORDER else -1
        lines = (
            ("Load its adapters elsewhere", f"{_many(len(self.moves), 'adapter')} to go", 0),
            ("Finish its requests", f"{_many(self.in_flight, 'request')} running", 1),
            ("Drained", f"It keeps {_many(self.held, 'adapter')}." if self.held else "", 2),
        )
        return tuple(
            Step(title, text if place == reached else "", _when(place, reached))
            for title, text, place in lines
        )

    @property
    def plan(self) -> tuple[PlanRow, ...]:
        """A row for each adapter on the engine: what is to be loaded elsewhere first."""
        moves = [
            PlanRow(
                move.version,
                f"Load on {move.to}" + (f", in place of {move.replaces}" if move.replaces else ""),
                "move",
                move.idle_seconds,
                move.in_flight,
            )
            for move in self.moves
        ]
        elsewhere = [
            PlanRow(loaded.version, f"On {', '.join(loaded.engines)} already", "elsewhere")
            for loaded in self.elsewhere
        ]
        stays = [
            PlanRow(stay.version, f"Not loaded elsewhere: {stay.reason}", "stays") for stay in self.stays
        ]
        return (*moves, *elsewhere, *stays)


def _when(place: int, reached: int) -> Literal["done", "now", "later"]:
    if place < reached or place == reached == len(_ORDER) - 1:
        return "done"
    return "now" if place == reached else "later"


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' * (count != 1)}"

"""The drain of an engine: its plan first, then its progress."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal
from urllib.parse import quote

from starlette.responses import Response

from gateway.console.forms import body_of, fields_of
from gateway.console.pages.fleet.rows import idle
from gateway.console.tables import Cell, Column
from gateway.console.visit import OPERATORS, Route, Visit
from gateway.fleet.engines.schemas.engines import Drain, DrainOptions

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


_TONES: Final = {"move": "info", "elsewhere": "good", "stays": "warn"}
_WORDS: Final = {"move": "move", "elsewhere": "already elsewhere", "stays": "not moved"}


def _used(row: PlanRow) -> Cell:
    return Cell(row.idle_seconds, text=idle(row.idle_seconds))


_COLUMNS = [
    Column("version", "Adapter version", lambda row: Cell(row.version, href=row.href)),
    Column("kind", "Plan", lambda row: Cell(_WORDS[row.kind], tone=_TONES[row.kind]), "badge"),
    Column("what", "What happens", lambda row: row.what),
    Column("idle_seconds", "Used", _used, "seconds"),
    Column("in_flight", "In flight", lambda row: row.in_flight, "number"),
]


async def show(visit: Visit) -> Response:
    """The plan, or how far the drain is."""
    name, drain = visit.params["engine"], await _progress(visit)
    table = visit.table(_COLUMNS, list(drain.plan))
    return visit.export(table, f"drain-of-{name}") or visit.page(
        "fleet_drain.html.j2", name=name, drain=drain, table=table, fields=fields_of(DrainOptions)
    )


async def live(visit: Visit) -> Response:
    async def draw() -> str:
        return visit.renderer.render(
            "fleet_drain_live.html.j2",
            visit=visit,
            name=visit.params["engine"],
            drain=await _progress(visit),
        )

    return await visit.live(draw)


async def start(visit: Visit) -> Response:
    name = visit.params["engine"]
    await visit.api.post(f"/admin/v1/engines/{name}/drain", body_of(DrainOptions, visit.text), Drain)
    return visit.see(f"/console/fleet/{name}/drain", f"The drain of {name} has begun.")


async def _progress(visit: Visit) -> DrainProgress:
    return await visit.api.get(f"/admin/v1/engines/{visit.params['engine']}/drain", DrainProgress)


_PATH = "/fleet/{engine}/drain"
ROUTES = (
    Route(_PATH, show, OPERATORS),
    Route(_PATH, start, OPERATORS, "POST"),
    Route(f"/live{_PATH}", live, OPERATORS),
)

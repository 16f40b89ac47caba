"""Recomputes the engine-hours of a month from the ledger's records, spans, weights and prices, and compares
them with the sums of the roll-up rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from sqlalchemy import Connection, and_, exists, func, or_, select, tuple_

from gateway.costs.closing.period_hash import Progress
from gateway.costs.periods import iso, month_of
from gateway.costs.rollups.engine_hour import PLACE, HourTerms, compute
from gateway.costs.rollups.plausibility import ImplausibleError
from gateway.costs.rollups.posted_rows import Key, divided, standing, totals
from gateway.costs.rollups.posting import FIGURES, Figures, RowKey
from gateway.metering.ledger.engine_hours import EngineHour as Place
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import dirty_hours, engine_hours, set_aside_hours

_AT_A_TIME = 32


@dataclass(slots=True)
class RecomputedHour:
    """The result; mutable while it is being computed."""

    compared: int = 0
    skipped: int = 0
    """Hours that await a correction, or that are set aside."""
    differences: list[str] = field(default_factory=list)


def recompute_hours(ledger: Ledger, month: str, progress: Progress) -> RecomputedHour:
    """Compares a few engine-hours per transaction, to keep transactions short. Raises
    LedgerUnavailableError."""
    period = month_of(month)
    table = engine_hours.c
    within = and_(table.hour >= period.start, table.hour < period.end)
    recomputed = RecomputedHour()
    after: Place | None = None
    with ledger.read() as connection:
        count = connection.execute(select(func.count()).select_from(engine_hours).where(within)).scalar_one()
    while True:
        with ledger.read() as connection:
            key = [table[name] for name in PLACE]
            query = select(*key).where(within).order_by(*key).limit(_AT_A_TIME)
            if after is not None:
                query = query.where(tuple_(*key) > after)
            places: list[Place] = [(row[0], row[1], row[2], row[3]) for row in connection.execute(query)]
            if not places:
                return recomputed
            progress("engine-hours", recomputed.compared + recomputed.skipped, count)
            _compare(connection, places, recomputed)
        after = places[-1]


def _compare(connection: Connection, places: list[Place], recomputed: RecomputedHour) -> None:
    terms = HourTerms(connection)
    for place in places:
        if _marked(connection, place):
            recomputed.skipped += 1
            continue
        recomputed.compared += 1
        try:
            computed = compute(connection, terms, place)
        except ImplausibleError as error:
            recomputed.differences.append(f"{place[1]} at {iso(place[0])} cannot be recomputed: {error}")
            continue
        posted = standing(connection, place)
        with_parts = divided(posted)
        fresh = {key: figures for key, figures in computed.postings(divided=with_parts) if any(figures)}
        stands = {key: f for key, f in totals(posted).items() if with_parts or isinstance(key, RowKey)}
        recomputed.differences += _differing(place, fresh, stands)


def _marked(connection: Connection, place: Place) -> bool:
    marks = (
        exists().where(*(table.c[name] == value for name, value in zip(PLACE, place, strict=True)))
        for table in (dirty_hours, set_aside_hours)
    )
    return bool(connection.execute(select(or_(*marks))).scalar())


def _differing(place: Place, fresh: dict[Key, Figures], standing: dict[Key, Figures]) -> Iterator[str]:
    nothing = (0,) * len(FIGURES)
    for key in sorted(fresh.keys() | standing.keys()):
        computed, stands = fresh.get(key, nothing), standing.get(key, nothing)
        what = [
            f"{n} {b:,}, computed {a:,}" for n, a, b in zip(FIGURES, computed, stands, strict=True) if a != b
        ]
        if what:
            part = () if isinstance(key, RowKey) else (key.dimension.replace("_", " "), key.name)
            whose = " ".join(filter(None, (key.bucket, key.tenant, key.adapter, key.version, *part)))
            yield f"{place[1]} at {iso(place[0])}, {whose}: {', '.join(what)}"

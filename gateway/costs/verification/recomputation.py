"""Recomputes the engine-hours of a month from the ledger's records, spans, weights and prices, and compares
them with the sums of the roll-up rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from sqlalchemy import Connection, Table, func, select

from gateway.costs.closing.period_hash import Progress
from gateway.costs.periods import iso, month_of
from gateway.costs.rollups.engine_hour import PLACE, HourTerms, compute
from gateway.costs.rollups.plausibility import ImplausibleError
from gateway.costs.rollups.posted_rows import Key, totals_by_place
from gateway.costs.rollups.posting import FIGURES, Figures, RowKey
from gateway.metering.ledger.engine_hours import EngineHour as Place
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import dirty_hours, engine_hours, set_aside_hours


@dataclass(slots=True)
class RecomputedHour:
    """The result; mutable while it is being computed."""

    compared: int = 0
    skipped: int = 0
    """Hours that await a correction, or that are set aside."""
    differences: list[str] = field(default_factory=list)


def recompute_hours(ledger: Ledger, month: str, progress: Progress) -> RecomputedHour:
    """Compares one hour of all engines per transaction, to keep transactions short. Raises
    LedgerUnavailableError."""
    period = month_of(month)
    table = engine_hours.c
    recomputed = RecomputedHour()
    within = table.hour >= period.start, table.hour < period.end
    with ledger.read() as connection:
        count = connection.execute(select(func.count()).select_from(engine_hours).where(*within)).scalar_one()
        hours = connection.execute(select(table.hour).where(*within).distinct().order_by(table.hour))
        starts = list(hours.scalars())
    for hour in starts:
        progress("engine-hours", recomputed.compared + recomputed.skipped, count)
        with ledger.read() as connection:
            _compare(connection, hour, recomputed)
    return recomputed


def _compare(connection: Connection, hour: int, recomputed: RecomputedHour) -> None:
    terms, marked = HourTerms(connection), _places(connection, hour, dirty_hours, set_aside_hours)
    standing = totals_by_place(connection, hour)
    for place in sorted(_places(connection, hour, engine_hours)):
        if place in marked:
            recomputed.skipped += 1
            continue
        recomputed.compared += 1
        try:
            computed = compute(connection, terms, place)
        except ImplausibleError as error:
            recomputed.differences.append(f"{place[1]} at {iso(place[0])} cannot be recomputed: {error}")
            continue
        posted = standing.get(place, {})
        fresh = {key: figures for key, figures in computed.postings() if any(figures)}
        if fresh != posted:
            recomputed.differences += _differing(place, fresh, posted)


def _places(connection: Connection, hour: int, *tables: Table) -> set[Place]:
    places: set[Place] = set()
    for table in tables:
        query = select(*(table.c[name] for name in PLACE)).where(table.c.hour == hour)
        places |= {(row[0], row[1], row[2], row[3]) for row in connection.execute(query)}
    return places


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

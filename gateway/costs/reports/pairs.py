"""Cost lines by two of the dimensions of parts at once, such as key and tag.

Roll-ups divide each row by one dimension at a time, so that names do not multiply in the database. For two,
the engine-hours are computed again from their records, as they are known now, and the names of a request are
taken together. Each dimension keeps the names that its roll-ups have, so both are bounded as they are, and
the sums over one are the lines of the other, to the unit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import Connection, func, select

from gateway.costs.cost_lines import CostLine, effective, read_lines
from gateway.costs.field_error import FieldError
from gateway.costs.periods import LocalTime, Period, iso
from gateway.costs.prices.book import PriceBook
from gateway.costs.rollups.engine_hour import ComputedHour, HourTerms, compute
from gateway.costs.rollups.parts import DIMENSIONS
from gateway.costs.rollups.plausibility import ImplausibleError
from gateway.costs.rollups.posting import FIGURES, Detail
from gateway.dataplane.labels import OTHER
from gateway.metering.ledger.ledger import EngineHour, pruned_before
from gateway.metering.ledger.schema import engine_hours, rollups

MOST_RECORDS = 1_000_000
"""A report reads all of them: about half a minute."""


class PairsError(FieldError):
    """The period cannot be divided by two dimensions; the message says why."""


def is_pair(by: Sequence[str]) -> bool:
    return sum(name in DIMENSIONS for name in by) > 1


def own_lines(
    connection: Connection,
    book: PriceBook,
    period: Period,
    by: Sequence[str],
    *,
    tenants: Sequence[str],
    posted: bool,
    local: LocalTime | None,
) -> Iterator[CostLine]:
    """The lines of a period without corrections, if these are read separately because months are shown as
    `posted`. Raises PairsError."""
    if is_pair(by):
        return pair_lines(connection, book, period, by, tenants)
    corrections = False if posted else None
    return read_lines(
        connection, book, period, by, tenants=tenants, corrections=corrections, as_posted=posted, local=local
    )


def pair_lines(
    connection: Connection, book: PriceBook, period: Period, by: Sequence[str], tenants: Sequence[str] = ()
) -> Iterator[CostLine]:
    """Like `read_lines` for hours as known now, in order of the keys. Raises PairsError."""
    whole = effective(period)
    _check(connection, whole)
    terms = HourTerms(connection)
    sums: dict[tuple[Any, ...], list[int]] = {}
    for place in _places(connection, whole):
        made = _computed(connection, terms, place)
        kept = {(key.tenant, key.dimension, key.name) for key in made.parts}
        for row, names, figures in made.details:
            if all(row.tenant == wanted for wanted in tenants):
                key = _key(place, (row, names, figures), by, kept)
                rate = book.rate(place[2], row.region, row.purchase, row.piece)
                of = (key, row.bucket, place[2], row.region, row.purchase, rate, row.calibration, False)
                held = sums.setdefault(of, [0] * len(FIGURES))
                for index, figure in enumerate(figures):
                    held[index] += figure
    for facts, figures in sorted(sums.items(), key=repr):
        yield CostLine(*facts, *figures)  # FIGURES are the sums of a line, in its order


def _computed(connection: Connection, terms: HourTerms, place: EngineHour) -> ComputedHour:
    try:
        return compute(connection, terms, place)
    except ImplausibleError as error:
        raise PairsError("by", f"{place[1]} at {iso(place[0])} cannot be computed: {error}") from error


def _check(connection: Connection, whole: Period) -> None:
    kept, names = pruned_before(connection), f"Two of {', '.join(DIMENSIONS)}"
    if kept > whole.start:
        raise PairsError("by", f"{names} need the usage records, and those before {iso(kept)} were removed.")
    query = select(func.coalesce(func.sum(engine_hours.c.records), 0)).where(
        engine_hours.c.hour >= whole.start, engine_hours.c.hour < whole.end
    )
    if (count := int(connection.execute(query).scalar_one())) > MOST_RECORDS:
        raise PairsError(
            "by",
            f"{names} need each of {count:,} records, more than {MOST_RECORDS:,}: ask for a shorter time.",
        )


def _places(connection: Connection, whole: Period) -> list[EngineHour]:
    table = rollups.c
    query = (
        select(table.hour, table.engine, table.gpu_type, table.gpu_count)
        .where(table.hour >= whole.start, table.hour < whole.end)
        .distinct()
    )
    return [(row[0], row[1], row[2], row[3]) for row in connection.execute(query.order_by(table.hour))]


def _key(
    place: EngineHour, detail: Detail, by: Sequence[str], kept: set[tuple[str, str, str]]
) -> tuple[str, ...]:
    row, names, _ = detail
    hour, engine, gpu_type, _ = place
    known = {
        **row._asdict(),
        "engine": engine,
        "gpu_type": gpu_type,
        "hour": iso(hour),
        "day": iso(hour)[:10],
    }
    for dimension, name in zip(DIMENSIONS, names or ("",) * len(DIMENSIONS), strict=True):
        known[dimension] = name or ""
        if name and (row.tenant, dimension, name) not in kept:
            known[dimension] = OTHER
    return tuple(str(known[name]) for name in by)

"""Cost lines computed again from the usage records, as they are known now, where roll-ups do not have them:

- by two of the dimensions of parts at once, such as key and tag. Roll-ups divide each row by one dimension
  at a time, so that names do not multiply in the database. Each dimension keeps the names that its roll-ups
  have, so both are bounded as they are, and the sums over one are the lines of the other, to the unit;
- of the hours that local time cuts: see `LocalTime.cuts`. Such an hour is divided like one within which the
  price changes: each part on its own, and the parts sum to the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, Table, exists, func, select

from gateway.costs.cost_lines import CostLine, effective, read_lines
from gateway.costs.field_error import FieldError
from gateway.costs.periods import LocalTime, Period, iso
from gateway.costs.prices.book import PriceBook
from gateway.costs.rollups.engine_hour import PLACE, ComputedHour, HourTerms, compute
from gateway.costs.rollups.parts import DIMENSIONS
from gateway.costs.rollups.plausibility import ImplausibleError
from gateway.costs.rollups.posting import FIGURES, Detail
from gateway.dataplane.labels import OTHER
from gateway.metering.ledger.engine_hours import EngineHour, pruned_before
from gateway.metering.ledger.schema import engine_hours, rollups, set_aside_hours

MOST_RECORDS = 1_000_000
"""A report reads all of them: about half a minute."""


_Where = Callable[[Table], Sequence[ColumnElement[bool]]]
"""Which hours, of a table that has them."""


class RecomputationError(FieldError):
    """The period cannot be computed again from records; the message says why."""


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
    `posted`. Raises RecomputationError."""
    if is_pair(by):
        yield from pair_lines(connection, book, period, by, tenants, local)
        return
    yield from read_lines(
        connection, book, period, by,
        tenants=tenants, corrections=False if posted else None, as_posted=posted, local=local,
    )  # fmt: skip  # as the call reads
    if local is not None and local.cuts:
        yield from cut_lines(connection, book, period, by, tenants, local)


def pair_lines(
    connection: Connection,
    book: PriceBook,
    period: Period,
    by: Sequence[str],
    tenants: Sequence[str] = (),
    local: LocalTime | None = None,
) -> Iterator[CostLine]:
    """Like `read_lines` for hours as known now, in order of the keys. Raises RecomputationError."""
    hours = effective(period)

    def where(table: Table) -> list[ColumnElement[bool]]:
        return [table.c.hour >= hours.start, table.c.hour < hours.end]

    places = _places(connection, where)
    what = f"Dividing by two of {', '.join(DIMENSIONS)}"
    _check(connection, places, where, _Refusal("by", what, "ask for a later or shorter time"))
    return _lines(connection, book, places, by, tenants, local)


def cut_lines(
    connection: Connection,
    book: PriceBook,
    period: Period,
    by: Sequence[str],
    tenants: Sequence[str],
    local: LocalTime,
) -> Iterator[CostLine]:
    """What lies within `local.within` of the hours of the period that local time cuts. Raises
    RecomputationError."""
    touched = effective(period)
    hours = [hour for hour in local.cut_hours if touched.start <= hour < touched.end]

    def where(table: Table) -> list[ColumnElement[bool]]:
        return [table.c.hour.in_(hours)]

    places = _places(connection, where)
    what = f"Days of {local.timezone} begin within an hour of UTC, and dividing that hour"
    _check(
        connection,
        places,
        where,
        _Refusal("timezone", what, "ask for a later time, or use UTC"),
    )
    return _lines(connection, book, places, by, tenants, local)


def _lines(
    connection: Connection,
    book: PriceBook,
    places: Sequence[EngineHour],
    by: Sequence[str],
    tenants: Sequence[str],
    local: LocalTime | None,
) -> Iterator[CostLine]:
    terms = HourTerms(connection)
    day_of = _utc_day if local is None else local.day
    sums: dict[tuple[Any, ...], list[int]] = {}
    for place in places:
        rows = _computed(connection, terms, place, () if local is None else local.cuts_in(place[0]))
        kept = {(key.tenant, key.dimension, key.name) for key in rows.parts}
        for row, names, figures in rows.details:
            if not all(row.tenant == tenant for tenant in tenants):
                continue
            if local is not None and not local.within.start <= row.piece < local.within.end:
                continue  # the rest of an hour that the period's start or end cuts
            key = _key(place, (row, names, figures), by, kept, day_of)
            rate = book.rate(place[2], row.region, row.purchase, row.piece)
            fact = (
                key, row.bucket, place[2], row.region, row.purchase, rate, row.calibration, False, row.task,
            )  # fmt: skip  # in the order of a line
            summed = sums.setdefault(fact, [0] * len(FIGURES))
            for index, figure in enumerate(figures):
                summed[index] += figure
    for facts, figures in sorted(sums.items(), key=repr):
        yield CostLine(*facts, *figures)  # FIGURES are the sums of a line, in its order


def _computed(
    connection: Connection, terms: HourTerms, place: EngineHour, cuts: Sequence[int]
) -> ComputedHour:
    try:
        return compute(connection, terms, place, cuts)
    except ImplausibleError as error:  # which may name other tenants' records
        raise RecomputationError(
            "by", f"The hour of {iso(place[0])} cannot be computed: a record of {place[1]} is implausible."
        ) from error


@dataclass(frozen=True, slots=True)
class _Refusal:
    param: str
    what: str
    """Needs the records."""
    instead: str


def _check(connection: Connection, places: Sequence[EngineHour], where: _Where, refusal: _Refusal) -> None:
    """That the records of all engine-hours are there, and not too many."""
    kept, what = pruned_before(connection), refusal.what
    if places and places[0][0] < kept:
        raise RecomputationError(
            refusal.param,
            f"{what} needs the usage records; those before {iso(kept)} were removed: {refusal.instead}.",
        )
    query = select(func.coalesce(func.sum(engine_hours.c.records), 0)).where(*where(engine_hours))
    if (count := int(connection.execute(query).scalar_one())) > MOST_RECORDS:
        raise RecomputationError(
            refusal.param,
            f"{what} needs each of {count:,} records, more than {MOST_RECORDS:,}: {refusal.instead}.",
        )


def _places(connection: Connection, where: _Where) -> list[EngineHour]:
    """In order of time, without those that are set aside, which the report lists."""
    table, apart = rollups.c, set_aside_hours.c
    known = exists().where(*(apart[name] == table[name] for name in PLACE))
    query = select(*(table[name] for name in PLACE)).where(*where(rollups), ~known).distinct()
    return [(row[0], row[1], row[2], row[3]) for row in connection.execute(query.order_by(table.hour))]


def _key(
    place: EngineHour,
    detail: Detail,
    by: Sequence[str],
    kept: set[tuple[str, str, str]],
    day_of: Callable[[int], str],
) -> tuple[str, ...]:
    row, names, _ = detail
    hour, engine, gpu_type, _ = place
    known = {
        **row._asdict(),
        "engine": engine,
        "gpu_type": gpu_type,
        "hour": iso(hour),
        "day": day_of(row.piece),
    }
    for dimension, name in zip(DIMENSIONS, names or ("",) * len(DIMENSIONS), strict=True):
        known[dimension] = name or ""
        if name and (row.tenant, dimension, name) not in kept:
            known[dimension] = OTHER
    return tuple(str(known[name]) for name in by)


def _utc_day(time: int) -> str:
    return iso(time)[:10]

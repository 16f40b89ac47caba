"""Cost lines: sums of roll-up rows with their price, the basis of reports, exports, statements and
comparisons.

The database computes the sums. Prices are part of the query, as a CASE over their times of validity, so that
all rows with the same rate become one line."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass
from functools import lru_cache
from operator import attrgetter
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    CompoundSelect,
    Connection,
    Select,
    and_,
    case,
    func,
    literal,
    literal_column,
    null,
    or_,
    select,
    union_all,
)

from gateway.costs.periods import LAST_HOUR, LocalTime, Period, iso, month_of, months
from gateway.costs.prices.book import PriceBook, Rate, Series
from gateway.costs.rollups.daily_sums import read_unsummed
from gateway.costs.rollups.part_sources import Rows, Source, sources
from gateway.costs.rollups.parts import DIMENSIONS as PART_DIMENSIONS
from gateway.units import DAY, HOUR, Amount, Micros, NanoHours

BUCKETS = ("usage", "retry_waste", "rejected", "headroom", "startup", "idle")
"""usage: delivered attempts; retry_waste: other attempts that reached an engine, and rereading the prompt
when a stream was resumed; rejected: requests that reached no engine (counted, without
GPU time); headroom: busy time beyond the work that calibrated weights account for;
startup: alive but not ready; idle: provisioned with nothing in flight. The last three have no tenant."""

DIMENSIONS = (
    "tenant", "adapter", "version", "base_model", "gpu_type", "engine", "region", "purchase", "hour", "day",
    *PART_DIMENSIONS,
)  # fmt: skip  # one name a line says no more
"""At most one of those of parts at a time: each divides the rows on its own."""


@dataclass(frozen=True, slots=True)
class CostLine:
    keys: tuple[str, ...]
    """Values of the requested dimensions, in order; hours and days in ISO 8601."""
    bucket: str
    gpu_type: str
    region: str
    purchase: str
    rate_micros: Micros | None
    """Per GPU-hour; None: no price."""
    calibration: int
    correction: bool
    task: str
    """As in records."""
    requests: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    nano_gpu_hours: NanoHours
    """May be negative in corrections."""
    weight_input: int
    weight_cached: int
    weight_output: int
    weight_other: int

    @property
    def series(self) -> Series:
        return self.gpu_type, self.region, self.purchase

    @property
    def cost(self) -> Amount | None:
        """None: no price."""
        return None if self.rate_micros is None else Amount(self.nano_gpu_hours * self.rate_micros)


_FACTS = ("bucket", "gpu_type", "region", "purchase", "calibration", "correction", "task")
"""What identifies a line besides its keys and rate."""
COUNTS = ("requests", "prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens")
SUMS = (*COUNTS, "nano_gpu_hours", "weight_input", "weight_cached", "weight_output", "weight_other")
"""The summed columns."""
_HIGH = 1 << 32


def read_lines(
    connection: Connection,
    book: PriceBook,
    period: Period,
    by: Sequence[str] = (),
    *,
    tenants: Sequence[str] = (),
    corrections: bool | None = None,
    as_posted: bool = True,
    local: LocalTime | None = None,
    buckets: Sequence[str] = (),
    summed: bool = True,
) -> Iterator[CostLine]:
    """Sums by `by` and everything that determines the price, in order of the keys. For whole months, reads
    the rows posted to those months: with corrections posted in them, and without those posted later. For
    other periods, reads their hours as known now (see `effective`). `tenants`: only rows whose tenant equals
    every entry. `corrections`: only corrections (True), or all but corrections (False). `as_posted`: whole
    months as posted; False: their hours as known now. `local`: the timezone of the days; without the hours
    that it cuts, which `own_lines` adds. `buckets`: only these. `summed`: also read sums of days, where that
    gives the same; False: only what they are made of."""

    def where(table: Rows) -> list[ColumnElement[bool]]:
        conditions = [
            _within(table, period, as_posted=as_posted),
            *(table.c.tenant == t for t in set(tenants)),
        ]
        if buckets:
            conditions.append(table.c.bucket.in_(buckets))
        if corrections is not None:
            conditions.append(table.c.correction == corrections)
        if local is not None and local.cuts:
            conditions.append(table.c.hour.not_in(local.cut_hours))
        if corrections and (names := months(period)) is not None:  # for the index: all are of earlier months
            conditions.append(table.c.hour < month_of(names[-1]).start)
        return conditions

    days = _hourly_days(connection, book, by, period) if summed and local is None else None
    yield from _read(connection, book, where, by, local, days)


def read_postings(
    connection: Connection, book: PriceBook, month: str, by: Sequence[str], *, first: str, last: str
) -> Iterator[CostLine]:
    """Lines of the hours of a month, as posted to the months from `first` to `last`: the month's own rows,
    later corrections of them, or both. All are of every tenant."""
    period = month_of(month)
    names = months(Period(month_of(first).start, month_of(last).end)) or ()

    def where(table: Rows) -> list[ColumnElement[bool]]:
        posted = table.c.posted.in_(names)  # not a range, so that the index also narrows the hours
        return [posted, table.c.hour >= period.start, table.c.hour < period.end]

    yield from _read(connection, book, where, by, None, _hourly_days(connection, book, by, period))


_MOST_HOURLY_DAYS = 100


def _hourly_days(
    connection: Connection, book: PriceBook, by: Sequence[str], period: Period
) -> list[int] | None:
    """The days of which rows must be read instead of their sums: also those that the period divides. None: of
    all."""
    if not {"hour", "engine"}.isdisjoint(by):
        return None
    edges = (time - time % DAY for time in astuple(effective(period)) if time % DAY)
    days = sorted({*read_unsummed(connection), *book.cut_days(), *edges})
    return days if len(days) <= _MOST_HOURLY_DAYS else None


def _read(
    connection: Connection,
    book: PriceBook,
    where: Callable[[Rows], Sequence[ColumnElement[bool]]],
    by: Sequence[str],
    local: LocalTime | None,
    hourly_days: Sequence[int] | None,
) -> Iterator[CostLine]:
    """`hourly_days`: see `_hourly_days`."""

    def within(table: Rows, *, daily: bool) -> list[ColumnElement[bool]]:
        return [*where(table), *_of_days(table, hourly_days, daily=daily)]

    kinds = [daily for daily in (True, False) if (hourly_days is not None if daily else hourly_days != [])]
    selects = [
        _rows(source, book, within(source.table, daily=daily), by, local)
        for daily in kinds
        for source in sources(by, daily=daily)
    ]
    inner = selects[0] if len(selects) == 1 else union_all(*selects)
    for row in connection.execute(_grouped(inner, len(by)).execution_options(yield_per=1000)):
        line = _line(tuple(row), by)
        if len(selects) == len(kinds) or any(_sums_of(line)):  # parts leave nothing of most rows
            yield line


_sums_of = attrgetter(*SUMS)


def _of_days(table: Rows, hourly: Sequence[int] | None, *, daily: bool) -> list[ColumnElement[bool]]:
    if not hourly:
        return []
    hour = table.c.hour
    if daily:
        return [hour.not_in(hourly)]
    spans: list[tuple[int, int]] = []
    for day in hourly:  # neighbours are one span: mostly there is one, which uses the index
        start = spans.pop()[0] if spans and spans[-1][1] == day else day
        spans.append((start, day + DAY))
    return [or_(*(and_(hour >= start, hour < end) for start, end in spans))]


def _rows(
    source: Source,
    book: PriceBook,
    where: Sequence[ColumnElement[bool]],
    by: Sequence[str],
    local: LocalTime | None,
) -> Select[Any]:
    table = source.table
    keys = [_key(source, name, local).label(f"key_{index}") for index, name in enumerate(by)]
    facts = (table.c[name] for name in _FACTS)
    return select(*keys, *facts, *source.figures(SUMS), _rate(table, book).label("price")).where(
        and_(*source.where, *where)
    )


def effective(period: Period) -> Period:
    """The whole hours of UTC that the period touches, which is what is read for it."""
    return Period(period.start - period.start % HOUR, min(period.end + -period.end % HOUR, LAST_HOUR))


def _within(table: Rows, period: Period, *, as_posted: bool) -> ColumnElement[bool]:
    posted = table.c.posted
    if as_posted and (names := months(period)) is not None:
        # Equality, so that the index also narrows the hours.
        return posted == names[0] if len(names) == 1 else posted.between(names[0], names[-1])
    hours = effective(period)
    # The month, for the index: nothing of an hour is posted before its own month.
    first = posted >= iso(hours.start)[:7]
    return and_(first, table.c.hour >= hours.start, table.c.hour < hours.end)


def _key(source: Source, name: str, local: LocalTime | None) -> ColumnElement[Any]:
    table = source.table
    if name in PART_DIMENSIONS:
        return source.name
    if name == "day":
        hour = table.c.hour if local is None else table.c.hour + _ahead(table, local)
        return hour - hour % DAY
    if name not in DIMENSIONS:
        raise ValueError(f"{name} is not one of {DIMENSIONS}")
    return table.c[name]


def _ahead(table: Rows, local: LocalTime) -> ColumnElement[int]:
    """Microseconds that local time is ahead of UTC in a row's hour."""
    (_, first), *later = local.offsets
    offset: ColumnElement[int] = literal(first, BigInteger)
    for start, ahead in later:
        offset = case((table.c.hour >= start, literal(ahead, BigInteger)), else_=offset)
    return offset


def _rate(table: Rows, book: PriceBook) -> ColumnElement[int | None]:
    """The rate of a row, in SQL: its frozen rate, or else that of PriceBook.rate."""
    whens: list[tuple[ColumnElement[bool], Any]] = [(table.c.rate_micros.is_not(None), table.c.rate_micros)]
    for rule in book.rules():
        of_type = table.c.gpu_type == rule.gpu_type
        if rule.any_case:
            of_type = func.lower(table.c.gpu_type) == rule.gpu_type.lower()
        fits = [of_type, table.c.purchase == rule.purchase]
        if rule.region is not None:
            fits.append(table.c.region == rule.region)
        whens.append((and_(*fits), literal_column(_at(rule.rates))))
    return case(*whens, else_=null())


def _at(rates: Sequence[Rate]) -> str:
    """SQL for the rate at `piece`, as a binary search: an hourly spot price means hundreds of rates a month.
    The numbers are literals, because a long price book exceeds SQLite's limit on parameters."""
    if not rates:
        return "NULL"
    if len(rates) > 1:
        half = len(rates) // 2
        return (
            f"CASE WHEN piece < {rates[half].start:d} THEN {_at(rates[:half])} ELSE {_at(rates[half:])} END"
        )
    [rate] = rates
    ends = "" if rate.end is None else f" AND piece < {rate.end:d}"
    return f"CASE WHEN piece >= {rate.start:d}{ends} THEN {rate.rate_micros:d} END"


def _grouped(inner: Select[Any] | CompoundSelect[Any], keys: int) -> Select[Any]:
    """Sums the high and the low digits separately, because SQLite rejects sums beyond 64 bits. (Both
    databases truncate the quotient, and give the remainder the sign of the dividend.)"""
    rows = inner.subquery()
    group = [*(rows.c[f"key_{index}"] for index in range(keys)), *(rows.c[n] for n in _FACTS), rows.c.price]
    high = [func.sum(rows.c[n] // _HIGH) for n in SUMS]
    low = [func.sum(rows.c[n] % _HIGH) for n in SUMS]
    return select(*group, *high, *low).group_by(*group).order_by(*group)


def _line(values: Sequence[Any], by: Sequence[str]) -> CostLine:
    width, first = len(by), len(by) + len(_FACTS) + 1
    bucket, gpu_type, region, purchase, calibration, correction, task, rate = values[width:first]
    middle = first + len(SUMS)
    sums = [
        int(high) * _HIGH + int(low) for high, low in zip(values[first:middle], values[middle:], strict=True)
    ]
    keys = tuple([_text(name, value) for name, value in zip(by, values[:width], strict=True)])
    facts = bucket, gpu_type, region, purchase, rate, calibration, correction, task
    return CostLine(keys, *facts, *sums)  # type: ignore[arg-type]  # in the order of SUMS


def _text(dimension: str, value: Any) -> str:
    if dimension == "hour":
        return _iso(value)
    return _iso(value)[:10] if dimension == "day" else str(value)


_iso = lru_cache(maxsize=10_000)(iso)  # lines repeat the same few hours

"""Which engine-hours a new price makes stale: those within which it begins or ends, and those of closed
months whose rate it changes. Other hours of open months are priced when they are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sqlalchemy import ColumnElement, Connection, and_, func, or_, select

from gateway.costs.periods import LAST_HOUR, month_of
from gateway.costs.prices.book import PriceBook
from gateway.metering.ledger.engine_hours import EngineHour, changed_terms
from gateway.metering.ledger.schema import dirty_hours, engine_hours, periods
from gateway.metering.ledger.sealed_months import check_months
from gateway.units import HOUR

Schedule = tuple[tuple[int, int | None], ...]


def opened_at(connection: Connection) -> int:
    """End of the last closed month; 0 if none is closed. Raises MonthChangedError."""
    check_months(connection)
    last = connection.execute(select(func.max(periods.c.month))).scalar()
    return 0 if last is None else month_of(last).end


def stale(
    connection: Connection,
    old: PriceBook,
    new: PriceBook,
    *,
    gpu_type: str,
    start: int,
    end: int | None,
    opened: int,
) -> Iterator[EngineHour]:
    """Engine-hours to roll up again after a change to prices of `gpu_type` in [start, end) has turned `old`
    into `new`. `end`: None if the change has none."""
    differs = _differs(old, new)
    kinds = {*old.kinds(gpu_type), *new.kinds(gpu_type)}
    cut = {
        hour
        for hour in old.broken_hours(gpu_type, HOUR) | new.broken_hours(gpu_type, HOUR)
        if hour > start - HOUR and (end is None or hour < end)
        if any(differs(gpu_type, region, purchase, hour) for region, purchase in kinds)
    }
    yield from marked(connection, gpu_type, dirty_hours.c.hour.in_(cut))
    table = engine_hours.c
    touched = [table.hour >= start - start % HOUR, table.hour < opened]
    if end is not None:
        touched.append(table.hour < end)
    query = select(
        table.hour, table.engine, table.gpu_type, table.gpu_count, table.region, table.purchase
    ).where(func.lower(table.gpu_type) == gpu_type.lower(), or_(table.hour.in_(cut), and_(*touched)))
    changed = changed_terms(connection, start - start % HOUR, LAST_HOUR)
    for hour, engine, kind, gpu_count, region, purchase in connection.execute(
        query.execution_options(yield_per=1000)
    ):
        several = changed.get((engine, kind, gpu_count), ())
        terms = ((region, purchase), *several)
        if any(differs(kind, where, how, hour) for where, how in terms):
            yield hour, engine, kind, gpu_count


def marked(connection: Connection, gpu_type: str, where: ColumnElement[bool]) -> list[EngineHour]:
    """Engine-hours that wait to be rolled up. A worker may be computing them from the old inputs right now,
    so a change marks them again; otherwise that worker would remove the only mark."""
    mark = dirty_hours.c
    query = select(mark.hour, mark.engine, mark.gpu_type, mark.gpu_count)
    rows = connection.execute(query.where(func.lower(mark.gpu_type) == gpu_type.lower(), where))
    return [(row[0], row[1], row[2], row[3]) for row in rows]


def _differs(old: PriceBook, new: PriceBook) -> Callable[[str, str, str, int], bool]:
    """A predicate: whether the rates of an hour differ."""
    known: dict[tuple[str, str, str, int], bool] = {}

    def differs(gpu_type: str, region: str, purchase: str, hour: int) -> bool:
        key = (gpu_type, region, purchase, hour)
        if key not in known:
            known[key] = _schedule(old, *key) != _schedule(new, *key)
        return known[key]

    return differs


def _schedule(book: PriceBook, gpu_type: str, region: str, purchase: str, hour: int) -> Schedule:
    times = [hour, *book.changes(gpu_type, region, purchase, hour, hour + HOUR)]
    return tuple((time, book.rate(gpu_type, region, purchase, time)) for time in times)

"""Roll-ups: each engine-hour that changed is divided anew, and its rows take the place of the old ones. In
closed months nothing is replaced: what differs is posted into the first open month. An engine-hour that
cannot be rolled up is set aside (see `set_aside`), and stops no other.

Whoever changes what an hour is made of (records, spans, prices, calibrations) marks it in `dirty_hours`, in
the transaction of the change. Any number may roll at a time: what is written is a function of the ledger
alone, and a mark goes only with the state that was read under it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Table,
    and_,
    bindparam,
    delete,
    exists,
    func,
    insert,
    select,
    text,
    tuple_,
    union_all,
)

from gateway.costs.periods import iso, month
from gateway.costs.rollups.pool_hours import AT, PLACE, ComputedHour, HourTerms, at, compute
from gateway.costs.rollups.posting import BY_BOOK, FIGURES, Figures, RowKey, RowPrice, corrections
from gateway.costs.rollups.set_aside import forget_set_aside, hour_text, put_set_aside
from gateway.costs.rollups.soundness import UnsoundError
from gateway.metering.ledger.database import REFUSALS, is_definite
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.ledger import PoolHour as Place
from gateway.metering.ledger.schema import (
    dirty_hours,
    ledger_state,
    periods,
    pool_hours,
    rollups,
    set_aside_hours,
)

log = logging.getLogger(__name__)

_MARKS = 64
_SECONDS = 0.25
"""So much is computed in one transaction of reading, and written in one of writing."""
_PRUNED_BEFORE = select(ledger_state.c.value).where(ledger_state.c.name == "pruned_before").scalar_subquery()


def _here(table: Table) -> ColumnElement[bool]:
    return and_(*(table.c[name] == value for name, value in zip(PLACE, AT, strict=True)))


_VERSION = select(dirty_hours.c.version).where(_here(dirty_hours)).with_for_update()
_FORGET_MARK = delete(dirty_hours).where(_here(dirty_hours))
_FORGET_WHOLE = delete(pool_hours).where(_here(pool_hours))
_FORGET_ROWS = delete(rollups).where(_here(rollups))
_FORGET_CORRECTIONS = _FORGET_ROWS.where(rollups.c.posted >= bindparam("open"))
_STANDING = select(*(rollups.c[name] for name in (*RowKey._fields, *RowPrice._fields, *FIGURES))).where(
    _here(rollups)
)
_COLUMNS = (*PLACE, "posted", "correction", *RowKey._fields, *RowPrice._fields, *FIGURES)
_Row = tuple[Any, ...]
"""As in _COLUMNS."""
_BOOKS_LOCK = 0x626F6F6B  # "book": PostgreSQL's advisory lock on what stands in which month


@dataclass(frozen=True, slots=True)
class Rolled:
    rolled: int
    """Pool-hours that are up to date now and were not."""
    pending: int
    """Pool-hours that have begun and are not up to date."""


def roll(ledger: Ledger, now: int, *, patience: float | None = None) -> Rolled:
    """Bring the roll-ups up to date, oldest hours first; hours that have not begun by `now` (Unix
    microseconds) wait. With `patience`, what is not begun after so many seconds is left pending.

    Memory in proportion to the records of one pool-hour. Raises LedgerUnavailableError; what was rolled until
    then stays."""
    deadline = None if patience is None else monotonic() + patience
    _forget_pruned(ledger)
    rolled = 0
    after: Place | None = None
    while found := _compute(ledger, now, after, deadline):
        rolled += _post_each(ledger, found, now)
        after = found[-1].place
        if deadline is not None and monotonic() >= deadline:
            break
    with ledger.read() as connection:
        count = select(func.count()).select_from(dirty_hours).where(dirty_hours.c.hour <= now)
        return Rolled(rolled, connection.execute(count).scalar_one())


def imbalance(ledger: Ledger) -> int:
    """Nano-GPU-hours by which the parts of pool-hours, over all months' books, miss their wholes: 0, or
    something is broken. Raises LedgerUnavailableError."""
    parts = select(*(rollups.c[name] for name in PLACE), rollups.c.nano_gpu_hours.label("nano"))
    wholes = select(*(pool_hours.c[name] for name in PLACE), (-pool_hours.c.nano_gpu_hours).label("nano"))
    both = union_all(parts, wholes).subquery()
    each = select(func.sum(both.c.nano).label("nano")).group_by(*(both.c[name] for name in PLACE)).subquery()
    with ledger.read() as connection:
        return int(connection.execute(select(func.coalesce(func.sum(func.abs(each.c.nano)), 0))).scalar_one())


def lock_books(connection: Connection) -> None:
    """In a write transaction: nobody else changes roll-ups or closes a month until it ends. First of all
    locks, so that two cannot wait for each other."""
    if connection.dialect.name == "postgresql":  # SQLite has one writer in any case
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _BOOKS_LOCK})


@dataclass(frozen=True, slots=True)
class _Found:
    version: int
    """Of the mark that was read with it."""
    place: Place
    now: ComputedHour | None
    """None: it cannot be divided."""
    reason: str = ""
    """Why."""


def _compute(ledger: Ledger, now: int, after: Place | None, deadline: float | None) -> list[_Found]:
    """The next marked pool-hours. Empty: there is none."""
    until = monotonic() + _SECONDS
    until = until if deadline is None else min(until, deadline)
    found: list[_Found] = []
    with ledger.read() as connection:
        terms = HourTerms(connection)
        for hour, engine, gpu_type, gpu_count, version in _marks(connection, now, after):
            found.append(_computed(connection, terms, (hour, engine, gpu_type, gpu_count), version))
            if monotonic() >= until:
                break
    return found


def _computed(connection: Connection, terms: HourTerms, place: Place, version: int) -> _Found:
    try:
        return _Found(version, place, compute(connection, terms, place))
    except UnsoundError as error:
        return _Found(version, place, None, str(error))
    except (ArithmeticError, ValueError, TypeError, LookupError) as error:  # a content nobody thought of
        log.exception("Engine-hour %s of %s cannot be rolled up.", place[0], place[1])
        return _Found(version, place, None, f"it cannot be divided: {error!r}")


def _marks(connection: Connection, now: int, after: Place | None) -> Sequence[Any]:
    order = [dirty_hours.c[name] for name in PLACE]
    hour = dirty_hours.c.hour
    # Asked in the transaction that reads the records: they may be removed at any time.
    query = select(*order, dirty_hours.c.version).where(
        hour <= now, hour >= func.coalesce(_PRUNED_BEFORE, hour)
    )
    if after is not None:
        query = query.where(tuple_(*order) > after)
    return connection.execute(query.order_by(*order).limit(_MARKS)).all()


def _post_each(ledger: Ledger, found: Sequence[_Found], now: int) -> int:
    """Write what was computed, all in one transaction; if the database refuses that, each in its own, and set
    aside the one that it refuses. How many of the marks are settled."""
    try:
        with ledger.write() as connection:
            lock_books(connection)
            return _post(connection, found, now)
    except REFUSALS as error:
        if not is_definite(error):
            raise
        if len(found) > 1:
            return sum(_post_each(ledger, [one], now) for one in found)
        [one] = found
        if one.now is None:  # even that
            raise
        refused = replace(one, now=None, reason=f"the ledger's database refuses its sums: {error}")
        return _post_each(ledger, [refused], now)


def _post(connection: Connection, found: Iterable[_Found], now: int) -> int:
    latest: str | None = connection.execute(select(func.max(periods.c.month))).scalar_one()
    any_aside = connection.execute(select(exists().select_from(set_aside_hours))).scalar()
    settled = 0
    rows: list[_Row] = []
    wholes: list[dict[str, Any]] = []
    terms = HourTerms(connection)
    for it in sorted(found, key=lambda f: f.place):  # as everybody orders marks, see `mark_dirty`
        one, place = it.now, it.place
        version = connection.execute(_VERSION, at(place)).scalar()
        closed = latest is not None and place[0] < month(latest).end
        if version is None or (closed and version != it.version):
            continue  # another was faster; or has just changed it, and corrections are not made in passing
        if one is None:
            _put_aside(connection, it, now, closed=closed)
        else:
            if any_aside:
                forget_set_aside(connection, [place])
            if closed:
                posted = iso(month(latest or "").end)[:7]
                rows += _corrected(connection, one, posted, terms)
            else:
                connection.execute(_FORGET_ROWS, at(place))
                fresh = ((key, BY_BOOK, figures) for key, figures in one.rows.items())
                rows += _rows(place, iso(place[0])[:7], fresh)
            connection.execute(_FORGET_WHOLE, at(place))
            if one.whole["records"] or one.whole["nano_gpu_hours"]:
                wholes.append(one.whole)
        if version == it.version:  # or else it was true a moment ago, and is done again
            connection.execute(_FORGET_MARK, at(place))
            settled += 1
    _put(connection, rows)
    if wholes:
        connection.execute(insert(pool_hours), wholes)
    return settled


def _put_aside(connection: Connection, it: _Found, now: int, *, closed: bool) -> None:
    """What stands in closed books stays there; in open ones, an hour that is half true is none."""
    if not closed:
        connection.execute(_FORGET_ROWS, at(it.place))
        connection.execute(_FORGET_WHOLE, at(it.place))
    if put_set_aside(connection, it.place, it.reason, now):
        log.error("Engine-hour set aside: %s at %s: %s", it.place[1], hour_text(it.place[0]), it.reason)


def _corrected(connection: Connection, one: ComputedHour, posted: str, terms: HourTerms) -> Iterator[_Row]:
    """Rows for the open month `posted`, in place of earlier corrections in it."""
    connection.execute(_FORGET_CORRECTIONS, {**at(one.place), "open": posted})
    keys, prices = len(RowKey._fields), len(RowPrice._fields)
    standing = [
        (RowKey(*row[:keys]), RowPrice(*row[keys : keys + prices]), tuple(row[keys + prices :]))
        for row in connection.execute(_STANDING, at(one.place))
    ]
    gpu_type = one.place[2]

    def by_book(key: RowKey) -> RowPrice:
        rate = terms.book.rate(gpu_type, key.region, key.purchase, key.piece)
        return BY_BOOK if rate is None else RowPrice(rate, terms.book.currency)

    return _rows(one.place, posted, corrections(standing, one.rows, by_book), correction=True)


def _rows(
    place: Place, posted: str, rows: Iterable[tuple[RowKey, RowPrice, Figures]], *, correction: bool = False
) -> Iterator[_Row]:
    common = (*place, posted, correction)
    for key, price, figures in rows:
        yield (*common, *key, *price, *figures)


def _put(connection: Connection, rows: list[_Row]) -> None:
    """In the driver's own terms: there can be a row for every few records, and building the statement's
    parameters by name costs five times what the database does with them."""
    if rows:
        mark = "?" if connection.dialect.paramstyle == "qmark" else "%s"
        marks = ", ".join([mark] * len(_COLUMNS))
        connection.exec_driver_sql(
            f"INSERT INTO {rollups.name} ({', '.join(_COLUMNS)}) VALUES ({marks})",  # noqa: S608  # our own names
            rows,
        )


def _forget_pruned(ledger: Ledger) -> None:
    """Hours whose records have been removed stay as they are."""
    pruned = dirty_hours.c.hour < _PRUNED_BEFORE
    with ledger.read() as connection:
        if connection.execute(select(dirty_hours.c.hour).where(pruned).limit(1)).first() is None:
            return
    with ledger.write() as connection:
        connection.execute(delete(dirty_hours).where(pruned))

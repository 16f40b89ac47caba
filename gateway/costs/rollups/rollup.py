"""Roll-ups: recompute each engine-hour that changed and replace its rows. Rows of closed months are never
replaced: the difference is posted into the first open month as correction rows. An engine-hour that cannot be
rolled up is set aside (see `set_aside`) and does not stop the others.

Whoever changes an input of an hour (records, spans, prices, calibrations) marks the hour in `dirty_hours`, in
the same transaction. Any number of workers may roll up concurrently: the rows are a function of the ledger
alone, and a mark is removed only if the hour has not changed since it was read.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    delete,
    exists,
    func,
    insert,
    select,
    tuple_,
    union_all,
)

from gateway.costs.periods import iso, month_of
from gateway.costs.rollups import posted_rows
from gateway.costs.rollups.daily_sums import mark_unsummed, sum_days
from gateway.costs.rollups.engine_hour import PLACE, ComputedHour, HourTerms, at, compute
from gateway.costs.rollups.plausibility import ImplausibleError
from gateway.costs.rollups.posted_rows import here, lock_postings
from gateway.costs.rollups.posting import BY_BOOK, RowKey, RowPrice, corrections
from gateway.costs.rollups.set_aside import forget_set_aside, hour_text, put_set_aside
from gateway.metering.ledger.database import REFUSALS, is_definite
from gateway.metering.ledger.engine_hours import EngineHour as Place
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import (
    dirty_hours,
    engine_hours,
    ledger_state,
    periods,
    rollups,
    set_aside_hours,
)
from gateway.metering.ledger.sealed_months import check_months

log = logging.getLogger(__name__)

_MARKS = 64
_SECONDS = 0.25
"""Time spent computing in one read transaction, before the result is written in one write transaction."""
_SUM_SECONDS = 2.0
"""Longest time spent on sums of days: reports do without them, but those of a ledger's first years wait."""
_PRUNED_BEFORE = select(ledger_state.c.value).where(ledger_state.c.name == "pruned_before").scalar_subquery()


_VERSION = select(dirty_hours.c.version).where(here(dirty_hours)).with_for_update()
_FORGET_MARK = delete(dirty_hours).where(here(dirty_hours))
_FORGET_WHOLE = delete(engine_hours).where(here(engine_hours))


@dataclass(frozen=True, slots=True)
class Rolled:
    rolled: int
    """Engine-hours brought up to date."""
    pending: int
    """Engine-hours that were stale when it began and still are."""


def roll(ledger: Ledger, now: int, *, patience: float | None = None) -> Rolled:
    """Bring the roll-ups up to date, oldest hours first. Hours that have not begun by `now` (Unix
    microseconds) wait. `patience`: seconds after which no further hour is started.

    Memory use is proportional to the records of one engine-hour. Raises LedgerUnavailableError; hours that
    were rolled up before it stay so."""
    deadline = None if patience is None else monotonic() + patience
    _forget_pruned(ledger)
    rolled = 0
    after: Place | None = None
    left: list[Place] = []
    while computed := _compute(ledger, now, after, deadline):
        rolled += _post_each(ledger, computed, now, left)
        after = computed[-1].place
        if deadline is not None and monotonic() >= deadline:
            return Rolled(rolled, len(left) + _stale(ledger, now, after))
    sum_days(ledger, now, seconds=_SUM_SECONDS)
    return Rolled(rolled, len(left))


def imbalance(ledger: Ledger) -> int:
    """Nano-GPU-hours by which the parts of engine-hours, over all months, differ from their wholes. Anything
    but 0 is a defect. Raises LedgerUnavailableError."""
    parts = select(*(rollups.c[name] for name in PLACE), rollups.c.nano_gpu_hours.label("nano"))
    wholes = select(*(engine_hours.c[name] for name in PLACE), (-engine_hours.c.nano_gpu_hours).label("nano"))
    both = union_all(parts, wholes).subquery()
    each = select(func.sum(both.c.nano).label("nano")).group_by(*(both.c[name] for name in PLACE)).subquery()
    with ledger.read() as connection:
        return int(connection.execute(select(func.coalesce(func.sum(func.abs(each.c.nano)), 0))).scalar_one())


@dataclass(frozen=True, slots=True)
class _Found:
    version: int
    """Version of the mark that was read with it."""
    place: Place
    now: ComputedHour | None
    """None if it cannot be computed; `reason` says why."""
    reason: str = ""


def _compute(ledger: Ledger, now: int, after: Place | None, deadline: float | None) -> list[_Found]:
    """The next marked engine-hours; empty if there are none."""
    until = monotonic() + _SECONDS
    until = until if deadline is None else min(until, deadline)
    computed: list[_Found] = []
    with ledger.read() as connection:
        terms = HourTerms(connection)
        for hour, engine, gpu_type, gpu_count, version in _marks(connection, now, after):
            computed.append(_computed(connection, terms, (hour, engine, gpu_type, gpu_count), version))
            if monotonic() >= until:
                break
    return computed


def _computed(connection: Connection, terms: HourTerms, place: Place, version: int) -> _Found:
    try:
        return _Found(version, place, compute(connection, terms, place))
    except ImplausibleError as error:
        return _Found(version, place, None, str(error))
    except (ArithmeticError, ValueError, TypeError, LookupError) as error:  # an unforeseen content
        log.exception("Cannot roll up the engine-hour %s of %s.", place[0], place[1])
        return _Found(version, place, None, f"computing it failed: {error!r}")


_ORDER = [dirty_hours.c[name] for name in PLACE]


def _marks(connection: Connection, now: int, after: Place | None) -> Sequence[Any]:
    # In the transaction that reads the records: they may be pruned at any time.
    query = select(*_ORDER, dirty_hours.c.version).where(*_begun(now, after))
    return connection.execute(query.order_by(*_ORDER).limit(_MARKS)).all()


def _stale(ledger: Ledger, now: int, after: Place) -> int:
    with ledger.read() as connection:
        query = select(func.count()).select_from(dirty_hours).where(*_begun(now, after))
        return int(connection.execute(query).scalar_one())


def _begun(now: int, after: Place | None) -> list[ColumnElement[bool]]:
    hour = dirty_hours.c.hour
    begun = [hour <= now, hour >= func.coalesce(_PRUNED_BEFORE, hour)]
    return begun if after is None else [*begun, tuple_(*_ORDER) > after]


def _post_each(ledger: Ledger, computed: Sequence[_Found], now: int, left: list[Place]) -> int:
    """Write the computed hours in one transaction; if the database rejects it, each in its own, and set aside
    the one it rejects. Returns how many marks were removed; appends hours to compute again to `left`."""
    try:
        with ledger.write() as connection:
            lock_postings(connection)
            return _post(connection, computed, now, left)
    except REFUSALS as error:
        if not is_definite(error):
            raise
        if len(computed) > 1:
            return sum(_post_each(ledger, [refused_hour], now, left) for refused_hour in computed)
        [refused_hour] = computed
        if refused_hour.now is None:  # not even setting it aside worked
            raise
        refused = replace(refused_hour, now=None, reason=f"the ledger database rejects its sums: {error}")
        return _post_each(ledger, [refused], now, left)


def _post(connection: Connection, computed: Sequence[_Found], now: int, left: list[Place]) -> int:
    check_months(connection)
    latest: str | None = connection.execute(select(func.max(periods.c.month))).scalar_one()
    any_aside = connection.execute(select(exists().select_from(set_aside_hours))).scalar()
    settled = 0
    rows: posted_rows.Rows = {}
    wholes: list[dict[str, Any]] = []
    terms = HourTerms(connection)
    for it in sorted(
        computed, key=lambda f: f.place
    ):  # the order in which all writers lock marks, see `mark_dirty`
        hour, place = it.now, it.place
        version = connection.execute(_VERSION, at(place)).scalar()
        closed = latest is not None and place[0] < month_of(latest).end
        if version is None:
            continue  # another worker was faster
        if closed and version != it.version:
            left.append(place)  # it changed meanwhile: no corrections from a stale state
            continue
        if hour is None:
            _put_aside(connection, it, now, closed=closed)
        else:
            if any_aside:
                forget_set_aside(connection, [place])
            if closed:
                posted = iso(month_of(latest or "").end)[:7]
                _correct(connection, hour, posted, terms, rows)
            else:
                posted_rows.forget(connection, place)
                fresh = ((key, BY_BOOK, figures) for key, figures in hour.postings())
                posted_rows.add(rows, place, iso(place[0])[:7], fresh)
            connection.execute(_FORGET_WHOLE, at(place))
            if hour.totals["records"] or hour.totals["nano_gpu_hours"]:
                wholes.append(hour.totals)
        if version == it.version:  # else it changed meanwhile, and is rolled up again
            connection.execute(_FORGET_MARK, at(place))
            settled += 1
    posted_rows.put(connection, rows)
    mark_unsummed(connection, (it.place[0] for it in computed))
    if wholes:
        connection.execute(insert(engine_hours), wholes)
    return settled


def _put_aside(connection: Connection, it: _Found, now: int, *, closed: bool) -> None:
    """Rows of closed months stay; those of open months are removed."""
    if not closed:
        posted_rows.forget(connection, it.place)
        connection.execute(_FORGET_WHOLE, at(it.place))
    if put_set_aside(connection, it.place, it.reason, now):
        log.error("Engine-hour of %s at %s set aside: %s", it.place[1], hour_text(it.place[0]), it.reason)


def _correct(
    connection: Connection, hour: ComputedHour, posted: str, terms: HourTerms, rows: posted_rows.Rows
) -> None:
    """Add the rows for the open month `posted`, which replace its earlier corrections of this hour."""
    posted_rows.forget_corrections(connection, hour.place, posted)
    standing = posted_rows.standing(connection, hour.place)
    gpu_type = hour.place[2]

    def by_book(key: RowKey) -> RowPrice:
        rate = terms.book.rate(gpu_type, key.region, key.purchase, key.piece)
        return BY_BOOK if rate is None else RowPrice(rate, terms.book.currency)

    changes = corrections(standing, dict(hour.postings()), by_book)
    posted_rows.add(rows, hour.place, posted, changes, correction=True)


def _forget_pruned(ledger: Ledger) -> None:
    """Hours whose records were pruned are never recomputed."""
    pruned = dirty_hours.c.hour < _PRUNED_BEFORE
    with ledger.read() as connection:
        if connection.execute(select(dirty_hours.c.hour).where(pruned).limit(1)).first() is None:
            return
    with ledger.write() as connection:
        connection.execute(delete(dirty_hours).where(pruned))

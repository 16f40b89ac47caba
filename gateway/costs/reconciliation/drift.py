"""Reads what is needed to compare records with the engines' token counters, and computes the hourly drift."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, and_, case, func, or_, select

from gateway.costs.periods import LAST_HOUR, Period
from gateway.costs.reconciliation.counters import (
    TOKEN_TYPES,
    CounterCheck,
    CounterSample,
    ProbeTokens,
    TokenTally,
    Window,
    check,
    outside,
    windows,
)
from gateway.costs.rollups.plausibility import MOST_TOKENS, storable
from gateway.metering.engine_metrics import MOST_COUNTED
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import engine_counters, engine_hours, engine_probes
from gateway.metering.ledger.schema import usage as table
from gateway.metering.records import Outcome
from gateway.units import HOUR

LONGEST = 6 * HOUR
"""Longest attempt: how far from a sample to look for attempts in flight at it."""


@dataclass(frozen=True, slots=True)
class Drift:
    """The share of an engine's tokens that nothing explains."""

    engine: str
    token_type: str
    """One of counters.TOKEN_TYPES."""
    ratio: float
    """Relative to the engine's tokens, or to those of the records if the engine counted none. Negative: the
    engine counted fewer than the records."""
    unexplained: int
    engine_tokens: int
    record_tokens: int


@dataclass(frozen=True, slots=True)
class Unsampled:
    """Records of an engine from a time without counters: after its last sample, before a restart, or before
    the ledger was lost."""

    engine: str
    within: Period
    tally: TokenTally


def drift(ledger: Ledger, now: int) -> list[Drift]:
    """The drift in the last full hour of every engine that was sampled in it. Reads the records of that hour.

    Raises LedgerUnavailableError."""
    end = now - now % HOUR
    with ledger.read() as connection:
        checks = token_checks(connection, Period(end - HOUR, end))
    sums: dict[tuple[str, str], list[int]] = {}
    for checked in checks:
        total = sums.setdefault((checked.window.engine, checked.token_type), [0, 0, 0])
        for index, value in enumerate((checked.rest, checked.engine_tokens, checked.record_tokens)):
            total[index] += value
    return [
        Drift(engine, token_type, rest / max(counted or recorded, 1), rest, counted, recorded)
        for (engine, token_type), (rest, counted, recorded) in sorted(sums.items())
    ]


def token_checks(connection: Connection, within: Period) -> list[CounterCheck]:
    """Checks every engine process sampled in a period of whole hours, for each token type that it counts."""
    done: list[CounterCheck] = []
    for window in read_windows(connection, within):
        ended = _tallies(connection, _ended(window))
        at_start = _sum(_tallies(connection, and_(_in_flight(window, window.start), _ended(window))))
        at_end = _sum(_tallies(connection, _in_flight(window, window.end)))
        probes = _probes(connection, window)
        checks = (check(window, ended, at_start, at_end, token_type, probes) for token_type in TOKEN_TYPES)
        done += [check_ for check_ in checks if check_ is not None]
    return done


def unsampled(connection: Connection, within: Period) -> list[Unsampled]:
    """The records outside the windows of `token_checks`, by engine and gap."""
    covered: dict[str, list[Window]] = {}
    for window in read_windows(connection, within):
        covered.setdefault(window.engine, []).append(window)
    engines = (
        select(engine_hours.c.engine)
        .where(
            engine_hours.c.hour >= within.start, engine_hours.c.hour < within.end, engine_hours.c.engine != ""
        )
        .distinct()
    )
    gaps: list[Unsampled] = []
    for engine in sorted({*connection.execute(engines).scalars(), *covered}):
        for gap in outside(within, covered.get(engine, ())):
            where = and_(table.c.engine == engine, table.c.ended >= gap.start, table.c.ended < gap.end)
            tally = _sum(_tallies(connection, where))
            if tally.records:
                gaps.append(Unsampled(engine, gap, tally))
    return gaps


def read_windows(connection: Connection, within: Period) -> list[Window]:
    hour = engine_counters.c.hour
    last = _latest(connection, and_(hour >= within.start, hour < within.end))
    before = _latest(connection, hour < within.start)
    return windows(before, last)


def _latest(connection: Connection, where: ColumnElement[bool]) -> list[CounterSample]:
    """The last sample of each engine process among those selected."""
    c = engine_counters.c
    newest = (
        select(c.engine, c.epoch, func.max(c.hour).label("hour")).where(where).group_by(c.engine, c.epoch)
    ).subquery()
    query = (
        select(c.engine, c.epoch, c.at, c.prompt_tokens, c.completion_tokens, c.cached_tokens)
        .join(newest, and_(c.engine == newest.c.engine, c.epoch == newest.c.epoch, c.hour == newest.c.hour))
        # Ignores impossible counters, which `read_metrics` would have refused.
        .where(
            c.epoch.between(0, LAST_HOUR),
            c.at.between(0, LAST_HOUR),
            c.prompt_tokens.between(0, MOST_COUNTED),
            c.completion_tokens.between(0, MOST_COUNTED),
            func.coalesce(c.cached_tokens, 0).between(0, MOST_COUNTED),
        )
    )
    return [CounterSample(*row) for row in connection.execute(query)]


def _probes(connection: Connection, window: Window) -> ProbeTokens:
    c = engine_probes.c
    sums = [
        func.coalesce(func.sum(count), 0) for count in (c.prompt_tokens, c.completion_tokens, c.cached_tokens)
    ]
    query = select(func.count(), *sums).where(
        c.engine == window.engine,
        c.at > window.start,
        c.at <= window.end,
        *(count.between(0, MOST_TOKENS) for count in (c.prompt_tokens, c.completion_tokens, c.cached_tokens)),
    )
    return ProbeTokens(*map(int, connection.execute(query).one()))  # PostgreSQL's sums are decimals


def _ended(window: Window) -> ColumnElement[bool]:
    return and_(table.c.engine == window.engine, table.c.ended > window.start, table.c.ended <= window.end)


def _in_flight(window: Window, time: int) -> ColumnElement[bool]:
    c = table.c
    return and_(c.engine == window.engine, c.ended > time, c.ended <= time + LONGEST, c.dispatched <= time)


def _tallies(connection: Connection, where: ColumnElement[bool]) -> list[TokenTally]:
    """Attempts that reached the engine, by kind."""
    return [_tally(row) for row in connection.execute(_query(where))]


def _query(where: ColumnElement[bool]) -> Select[Any]:
    c = table.c
    orphaned = case((c.outcome == Outcome.ORPHANED.value, 1), else_=0)
    cached_n = case(
        (c.cached_tokens.is_(None), c.prompt_tokens * c.n),
        else_=c.cached_tokens + c.prompt_tokens * (c.n - 1),
    )
    return (
        select(
            c.usage_source,
            orphaned,
            func.count(),
            func.sum(case((c.n > 1, 1), else_=0)),
            func.sum(case((or_(c.n > 1, c.cached_tokens.is_(None)), 1), else_=0)),
            func.sum(c.prompt_tokens),
            func.sum(c.prompt_tokens * c.n),
            func.sum(c.completion_tokens),
            func.sum(func.coalesce(c.cached_tokens, 0)),
            func.sum(cached_n),
            func.sum(c.n),
            func.max(c.prompt_tokens),
            func.max(c.completion_tokens),
        )
        .where(where, c.outcome != Outcome.REJECTED.value, storable(table))
        .group_by(c.usage_source, orphaned)
        .order_by(c.usage_source, orphaned)
    )


def _tally(row: Row[Any]) -> TokenTally:
    values = tuple(row)
    return TokenTally(values[0], bool(values[1]), *map(int, values[2:]))  # PostgreSQL's sums are decimals


def _sum(tallies: Sequence[TokenTally]) -> TokenTally:
    """The sum over all kinds."""
    names = (
        "records",
        "several",
        "cached_unsure",
        "input",
        "input_n",
        "output",
        "cached",
        "cached_n",
        "answers",
    )
    return TokenTally(**{name: sum(getattr(tally, name) for tally in tallies) for name in names})

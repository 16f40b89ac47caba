"""Completeness: whether a month's usage is in the ledger, exactly once, and rolled up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import orjson
from sqlalchemy import Connection, and_, case, func, select

from gateway.costs.periods import LAST_HOUR, Period, month_of
from gateway.costs.rollups.balance import imbalances
from gateway.costs.rollups.plausibility import storable
from gateway.costs.rollups.set_aside import read_set_aside
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import dirty_hours, quarantine, usage
from gateway.metering.records import CONTINUED, MOST_ATTEMPTS, record_id

_CHUNK = 500


def completeness(connection: Connection, month: str, within: Period) -> dict[str, Any]:
    """Checks the month within the period; hours set aside, for the whole month. Reads the month's
    records once."""
    records, second_attempts = _records(connection, within)
    return {
        "imbalances": [str(imbalance) for imbalance in imbalances(connection, month)],
        "hours_pending": _pending(connection, within),
        "quarantined": _quarantined(connection, month_of(month)),
        "delivered_twice": delivered_twice(connection, within) if second_attempts else 0,
        "records": records,
        "implausible": _implausible(connection, within),
        "set_aside": [imbalance.document() for imbalance in read_set_aside(connection, month_of(month))],
    }


def left_out(ledger: Ledger, period: Period | None, fields: Mapping[str, str]) -> tuple[bool, bool]:
    """Whether records that no one has dismissed are in quarantine, and whether engine-hours are set aside.
    `period`: in which; None: whenever, and only records are looked for. `fields`: what the records have.
    Raises LedgerUnavailableError."""
    with ledger.read() as connection:
        quarantined = bool(_quarantined(connection, period, fields))
        return quarantined, period is not None and bool(read_set_aside(connection, period, limit=1))


def _pending(connection: Connection, within: Period) -> int:
    """Engine-hours whose roll-up is stale."""
    hour = dirty_hours.c.hour
    query = select(func.count()).where(hour >= within.start, hour < within.end)
    return int(connection.execute(query).scalar() or 0)


def _quarantined(
    connection: Connection, period: Period | None, fields: Mapping[str, str] = MappingProxyType({})
) -> dict[str, int]:
    """Records of a period that no one has dismissed, by reason. One with an impossible time counts where it
    arrived."""
    c = quarantine.c
    # As they are written there; within a text, quotes are escaped.
    parts = [orjson.dumps({name: value}).decode()[1:-1] for name, value in fields.items()]
    where = [c.dismissed_at.is_(None), *(c.content.contains(part, autoescape=True) for part in parts)]
    if period is not None:
        time = case((c.ended.between(0, LAST_HOUR), c.ended), else_=c.recorded_at)
        where += [time >= period.start, time < period.end]
    query = select(c.reason, func.count()).where(*where).group_by(c.reason).order_by(c.reason)
    return {name: int(count) for name, count in connection.execute(query)}


def _records(connection: Connection, within: Period) -> tuple[list[dict[str, Any]], int]:
    """Records by source of their counts and by outcome, and the number of billable second and later attempts,
    in one pass over the month's records."""
    c = usage.c
    query = (
        select(
            c.usage_source,
            c.outcome,
            func.count(),
            func.sum(c.prompt_tokens),
            func.sum(c.completion_tokens),
            func.sum(case((and_(c.attempt >= 2, c.billable, c.outcome.not_in(CONTINUED)), 1), else_=0)),
        )
        .where(c.ended >= within.start, c.ended < within.end, storable(usage))
        .group_by(c.usage_source, c.outcome)
        .order_by(c.usage_source, c.outcome)
    )
    rows = connection.execute(query).all()
    shown = [
        {
            "usage_source": row[0],
            "outcome": row[1],
            "records": int(row[2]),
            "prompt_tokens": int(row[3]),
            "completion_tokens": int(row[4]),
        }
        for row in rows
    ]
    return shown, sum(int(row[5]) for row in rows)


def _implausible(connection: Connection, within: Period) -> int:
    """Records with impossible counts, which are in none of the sums."""
    c = usage.c
    query = select(func.count()).where(c.ended >= within.start, c.ended < within.end, ~storable(usage))
    return int(connection.execute(query).scalar_one())


def delivered_twice(connection: Connection, within: Period) -> int:
    """Requests with two billable attempts, of which the later did not continue the earlier. An attempt's id
    follows from its request and number, so only second and later attempts need to be looked up."""
    c = usage.c
    query = select(c.request_id, c.attempt).where(
        c.ended >= within.start,
        c.ended < within.end,
        c.attempt.between(2, MOST_ATTEMPTS),
        c.billable,
        c.outcome.not_in(CONTINUED),
    )
    twice: set[str] = set()
    for chunk in _chunks(connection.execute(query).all()):
        earlier = {
            record_id(request, number): request for request, last in chunk for number in range(1, last)
        }
        delivered = select(c.id).where(c.id.in_(list(earlier)), c.billable)
        twice.update(earlier[delivered_id] for delivered_id in connection.execute(delivered).scalars())
    return len(twice)


def _chunks(rows: Any) -> Iterator[list[tuple[str, int]]]:
    for first in range(0, len(rows), _CHUNK):
        yield [(row[0], row[1]) for row in rows[first : first + _CHUNK]]

"""How long adapters were resident in a month, which rate cards can price.

An adapter is resident while at least one version of it holds a slot of at least one engine. Two versions, or
copies on several engines, count once: how many there are is the operator's decision, not the customer's. What
counts is what the samples of `residency_spans` show. A stay ends with its last sample, and what is less than
a thousandth of an hour in a month is dropped, so that nobody pays for time that was not seen.

An open month is read from the samples. Closing it stores the hours, and its terms a digest of them; from then
on these count.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import Connection, insert, select

from gateway.costs.periods import HOUR, Period, month
from gateway.costs.prices.amounts import decimal_text
from gateway.costs.proofs.merkle import digest
from gateway.metering.ledger.schema import period_residency, periods, residency_spans

BRIDGE = 200_000_000
"""Microseconds between two samples of one stay, at most: three samples, so that a change of the worker that
takes them leaves no gap."""
PLACES = 3
"""Hours are counted in thousandths, so that hours times price is a finite decimal."""
_MILLI_HOUR = HOUR // 10**PLACES

Residency = Mapping[str, int]
"""Full name of an adapter → thousandths of an hour, above 0."""


def residency_of(connection: Connection, of: str) -> Residency:
    """Of a month that is closed or being closed: as stored. Of an open one: as sampled so far."""
    stored = connection.execute(select(periods.c.month).where(periods.c.month == of)).first() is not None
    return stored_residency(connection, of) if stored else sampled_residency(connection, of)


def stored_residency(connection: Connection, of: str) -> Residency:
    table = period_residency.c
    query = select(table.adapter, table.milli_hours).where(table.month == of).order_by(table.adapter)
    return {row.adapter: row.milli_hours for row in connection.execute(query)}


def sampled_residency(connection: Connection, of: str) -> Residency:
    table, whole = residency_spans.c, month(of)
    query = select(table.version, table.started, table.seen).where(
        table.seen > whole.start, table.started < whole.end
    )
    stays: dict[str, list[tuple[int, int]]] = {}
    for version, started, seen in connection.execute(query):
        stays.setdefault(version.partition("@")[0], []).append((started, seen))
    found = {adapter: covered(of_one, whole) // _MILLI_HOUR for adapter, of_one in sorted(stays.items())}
    return {adapter: hours for adapter, hours in found.items() if hours}


def covered(stays: Iterable[tuple[int, int]], within: Period) -> int:
    """Microseconds of a period in at least one of the stays."""
    whole, until = 0, within.start
    for started, seen in sorted(stays):
        begin, end = max(started, until), min(seen, within.end)
        if end > begin:
            whole += end - begin
            until = end
    return whole


def store_residency(connection: Connection, of: str) -> dict[str, Any]:
    """In the transaction that cuts off a month: store its hours. Returns what its terms say of them."""
    found = sampled_residency(connection, of)
    rows = [{"month": of, "adapter": adapter, "milli_hours": hours} for adapter, hours in found.items()]
    if rows:
        connection.execute(insert(period_residency), rows)
    return summary(found)


def summary(residency: Residency) -> dict[str, Any]:
    return {
        "adapters": len(residency),
        "hours": hours_text(sum(residency.values())),
        "digest": digest(residency),
    }


def of_tenants(residency: Residency) -> dict[str, dict[str, int]]:
    """Tenant → its adapters with their hours."""
    found: dict[str, dict[str, int]] = {}
    for adapter, hours in residency.items():
        found.setdefault(adapter.partition("/")[0], {})[adapter] = hours
    return found


def hours_text(milli_hours: int) -> str:
    return decimal_text(milli_hours, PLACES)

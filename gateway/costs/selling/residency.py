"""How long adapters were resident in a month, which rate cards can price.

An adapter is resident while at least one version of it holds a slot of at least one engine. Two versions, or
copies on several engines, count once: how many there are is the operator's decision, not the customer's. What
counts is what the samples of `residency_spans` show. A stay ends with its last sample, and what is less than
a thousandth of an hour in a month is dropped, so that nobody pays for time that was not seen.

An open month is read from the samples. Closing it stores the hours, and its terms a digest of them; from then
on these count.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, insert, select

from gateway.costs.merkle import digest
from gateway.costs.periods import month_of
from gateway.costs.rollups.attribution import union, within
from gateway.metering.ledger.schema import period_residency, periods, residency_spans
from gateway.units import HOUR, MilliHours, hours_text, total

BRIDGE = 200_000_000
"""Microseconds between two samples of one stay, at most: three samples, so that a change of the worker that
takes them leaves no gap."""
_MILLI_HOUR = HOUR // 1000
"""Hours are counted in thousandths, so that hours times price is a finite decimal."""

Residency = Mapping[str, MilliHours]
"""Full name of an adapter → its hours, above 0."""


def residency_of(connection: Connection, month: str) -> Residency:
    """As stored when the month was cut off, or for an open one as sampled so far."""
    stored = connection.execute(select(periods.c.month).where(periods.c.month == month)).first() is not None
    return stored_residency(connection, month) if stored else sampled_residency(connection, month)


def stored_residency(connection: Connection, month: str) -> Residency:
    table = period_residency.c
    query = select(table.adapter, table.milli_hours).where(table.month == month).order_by(table.adapter)
    return {row.adapter: row.milli_hours for row in connection.execute(query)}


def sampled_residency(connection: Connection, month: str) -> Residency:
    table, period = residency_spans.c, month_of(month)
    query = select(table.version, table.started, table.seen).where(
        table.seen > period.start, table.started < period.end
    )
    stays: dict[str, list[tuple[int, int]]] = {}
    for version, started, seen in connection.execute(query):
        stays.setdefault(version.partition("@")[0], []).append((started, seen))
    times = {adapter: within(union(own), period.start, period.end) for adapter, own in sorted(stays.items())}
    return {a: MilliHours(time // _MILLI_HOUR) for a, time in times.items() if time >= _MILLI_HOUR}


def store_residency(connection: Connection, month: str) -> dict[str, Any]:
    """In the transaction that cuts off a month: store its hours. Returns what its terms say of them."""
    residency = sampled_residency(connection, month)
    rows = [
        {"month": month, "adapter": adapter, "milli_hours": hours} for adapter, hours in residency.items()
    ]
    if rows:
        connection.execute(insert(period_residency), rows)
    return summary(residency)


def summary(residency: Residency) -> dict[str, Any]:
    return {
        "adapters": len(residency),
        "hours": hours_text(total(residency.values())),
        "digest": digest(residency),
    }


def of_tenants(residency: Residency) -> dict[str, dict[str, MilliHours]]:
    """Tenant → its adapters with their hours."""
    by_tenant: dict[str, dict[str, MilliHours]] = {}
    for adapter, hours in residency.items():
        by_tenant.setdefault(adapter.partition("/")[0], {})[adapter] = hours
    return by_tenant

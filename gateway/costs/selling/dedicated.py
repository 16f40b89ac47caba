"""GPU time of engines that were dedicated to a tenant in a month, which rate cards can price.

It counts as provisioned time does: while the engine was seen starting or up, with short gaps bridged, whether
or not it served anything, times its GPUs. What is less than a thousandth of a GPU-hour in a month is dropped.

An open month is read from the sightings in `engine_spans`. Closing it stores the hours, and its terms a
digest of them, if there are any; from then on these count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from sqlalchemy import Connection, insert, select

from gateway.costs.merkle import digest
from gateway.costs.periods import Period, month_of
from gateway.costs.rollups.attribution import BRIDGED, Interval, union, within
from gateway.metering.ledger.schema import engine_spans, period_dedicated, periods
from gateway.units import HOUR, MilliHours, hours_text, total

_MILLI_HOUR = HOUR // 1000

GpuHours = Mapping[str, MilliHours]
"""GPU type → its GPU-hours, above 0."""
Dedicated = Mapping[str, GpuHours]
"""Tenant → GPU-hours of engines that are dedicated to it."""


def dedicated_in(connection: Connection, month: str) -> Dedicated:
    """As stored when the month was cut off, or for an open one as sighted so far."""
    stored = connection.execute(select(periods.c.month).where(periods.c.month == month)).first() is not None
    return stored_dedicated(connection, month) if stored else sighted_dedicated(connection, month)


def stored_dedicated(connection: Connection, month: str) -> Dedicated:
    table = period_dedicated.c
    query = select(table.tenant, table.gpu_type, table.milli_hours).where(table.month == month)
    stored: dict[str, dict[str, MilliHours]] = {}
    for tenant, gpu_type, hours in connection.execute(query.order_by(table.tenant, table.gpu_type)):
        stored.setdefault(tenant, {})[gpu_type] = hours
    return stored


def sighted_dedicated(connection: Connection, month: str) -> Dedicated:
    period = month_of(month)
    sums: Counter[tuple[str, str]] = Counter()
    for tenant, gpu_type, gpus, sightings in _sightings(connection, period):
        time = within(union(sightings, bridged=BRIDGED), period.start, period.end)
        sums[tenant, gpu_type] += time * gpus
    hours: dict[str, dict[str, MilliHours]] = {}
    for (tenant, gpu_type), time in sorted(sums.items()):
        if time >= _MILLI_HOUR:
            hours.setdefault(tenant, {})[gpu_type] = MilliHours(time // _MILLI_HOUR)
    return hours


def dedicated_gpus(connection: Connection, month: str) -> Mapping[tuple[str, str], int]:
    """(tenant, GPU type) → how many GPUs were dedicated at some time of the month."""
    gpus: Counter[tuple[str, str]] = Counter()
    for tenant, gpu_type, count, _ in _sightings(connection, month_of(month)):
        gpus[tenant, gpu_type] += count
    return gpus


def _sightings(connection: Connection, period: Period) -> Iterator[tuple[str, str, int, list[Interval]]]:
    """Tenant, GPU type and number of GPUs of each engine, and when it was seen; also what may bridge a gap at
    the ends of the period."""
    table = engine_spans.c
    query = select(
        table.tenant, table.gpu_type, table.gpu_count, table.engine, table.started, table.seen
    ).where(
        table.tenant != "",
        table.seen > period.start - BRIDGED,
        table.started < period.end + BRIDGED,
    )
    engines: dict[tuple[str, str, int, str], list[Interval]] = {}
    for tenant, gpu_type, count, engine, started, seen in connection.execute(query):
        engines.setdefault((tenant, gpu_type, count, engine), []).append((started, seen))
    for (tenant, gpu_type, count, _), sightings in engines.items():
        yield tenant, gpu_type, count, sightings


def store_dedicated(connection: Connection, month: str) -> dict[str, Any] | None:
    """In the transaction that cuts off a month: store its hours. Returns what its terms say of them; None:
    there are none."""
    dedicated = sighted_dedicated(connection, month)
    rows = [
        {"month": month, "tenant": tenant, "gpu_type": gpu_type, "milli_hours": hours}
        for tenant, own in dedicated.items()
        for gpu_type, hours in own.items()
    ]
    if not rows:
        return None
    connection.execute(insert(period_dedicated), rows)
    return summary(dedicated)


def summary(dedicated: Dedicated) -> dict[str, Any]:
    return {
        "tenants": len(dedicated),
        "gpu_hours": hours_text(total(hours for own in dedicated.values() for hours in own.values())),
        "digest": digest(dedicated),
    }

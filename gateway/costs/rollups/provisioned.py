"""Time provisioned by hour and terms. Hours within which an engine's region or purchase model changed are
read by their parts, each on its own terms."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from sqlalchemy import ColumnElement, Connection, func, select

from gateway.costs.periods import Period, iso
from gateway.metering.ledger.engine_hours import Pool, changed_terms
from gateway.metering.ledger.schema import engine_hours, rollups


class Provisioned(NamedTuple):
    """Time provisioned in an hour on the same terms."""

    engine: str
    gpu_type: str
    gpu_count: int
    region: str
    purchase: str
    hour: int
    nano_gpu_hours: int


_COLUMNS = Provisioned._fields[:-1]


def provisioned(connection: Connection, within: Period) -> Iterator[Provisioned]:
    """The time of a period of whole hours, as known now."""
    changed = changed_terms(connection, within.start, within.end)
    c = engine_hours.c
    columns = [*(c[name] for name in _COLUMNS), c.nano_gpu_hours]
    query = select(*columns).where(c.hour >= within.start, c.hour < within.end, c.nano_gpu_hours > 0)
    for row in connection.execute(query):
        part = Provisioned._make(row)
        if part[:3] not in changed:
            yield part
    for pool in changed:
        yield from _by_terms(connection, within, pool)


def _by_terms(connection: Connection, within: Period, pool: Pool) -> Iterator[Provisioned]:
    """From the parts of the hours, which sum to them."""
    c = rollups.c
    columns = [c[name] for name in _COLUMNS]
    where: list[ColumnElement[bool]] = [column == value for column, value in zip(columns, pool, strict=False)]
    # The month lets SQLite use an index: nothing of an hour is posted before the hour's own month.
    where += [c.posted >= iso(within.start)[:7], c.hour >= within.start, c.hour < within.end]
    total = func.sum(c.nano_gpu_hours)
    query = select(*columns, total).where(*where).group_by(*columns).having(total > 0).order_by(*columns)
    for row in connection.execute(query):
        part = Provisioned._make(row)
        yield part._replace(nano_gpu_hours=int(part.nano_gpu_hours))  # PostgreSQL's sums are decimals

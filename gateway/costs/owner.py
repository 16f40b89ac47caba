"""Whose figures a tenant's own key sees. Names recur: a new customer may get the name of a removed one, and
sees nothing of what that one used.

- Records: those of requests that began after the tenant was added.
- Hours: from the hour in which it was added. If an earlier tenant's requests ran in that hour, from the hour
  after the last of them ended.
- Months, for what exists only by month (statements, proofs, exports, invoices): those that cover nothing of
  an earlier tenant.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, func, select

from gateway.costs.periods import Period, iso, month_of
from gateway.metering.ledger.engine_hours import pruned_before
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import engine_spans, of_tenant, residency_spans, rollups, usage
from gateway.units import DAY, HOUR

_LONGEST_REQUEST = DAY
"""No request outlives its tenant by more."""
_NAMES_AT_A_TIME = 500


@dataclass(frozen=True, slots=True)
class Owner:
    """The tenant whose key asks."""

    tenant: str
    since: int
    """When it was added, Unix microseconds."""

    @property
    def hour(self) -> int:
        """The start of the hour in which it was added."""
        return self.since - self.since % HOUR

    def may_see(self, tenant: str, dispatched: int) -> bool:
        """Whether a request is its own."""
        return tenant == self.tenant and dispatched >= self.since


def first_hour(connection: Connection, owner: Owner) -> int:
    """The start of the first hour that is the owner's alone."""
    if pruned_before(connection) > owner.hour:  # then no record tells whose that hour was
        return owner.hour + HOUR if has_predecessor(connection, owner) else owner.hour
    table = usage.c
    query = select(func.max(table.ended)).where(
        of_tenant(owner.tenant),
        table.ended >= owner.hour,
        table.ended < owner.since + _LONGEST_REQUEST,
        table.dispatched < owner.since,
    )
    last = connection.execute(query).scalar()
    return owner.hour if last is None else last - last % HOUR + HOUR


def has_predecessor(connection: Connection, owner: Owner) -> bool:
    """Whether a tenant of its name had used anything when it was added."""
    table, month_added = rollups.c, iso(owner.since)[:7]
    own = table.tenant == owner.tenant
    return any(
        connection.execute(select(table.id).where(own, *where).limit(1)).first()
        for where in ((table.posted < month_added,), (table.posted == month_added, table.hour < owner.hour))
    )


def report_start(
    connection: Connection, owner: Owner, period: Period, posted: Collection[str] | None
) -> int | None:
    """Where a report must begin that is about the owner alone; None: at the start of the period. `posted`:
    the months that it shows as posted, which may have late corrections of an earlier tenant's hours."""
    if period.start >= owner.since + _LONGEST_REQUEST + HOUR and posted is None:
        return None
    if posted is not None and not _shared(connection, owner, min(posted), max(posted)):
        return None
    return max(first_hour(connection, owner), period.start)


def owns_month(connection: Connection, owner: Owner, month: str) -> bool:
    """Whether a month covers nothing of an earlier tenant."""
    period = month_of(month)
    if period.end <= owner.since or _shared(connection, owner, month, month):
        return False
    return period.start >= owner.since or not _resident_before(connection, owner, period)


def owns(ledger: Ledger, owner: Owner, month: str) -> bool:
    """`owns_month` in a transaction of its own. Raises PeriodError, LedgerUnavailableError."""
    with ledger.read() as connection:
        return owns_month(connection, owner, month)


def names_reused(ledger: Ledger, added: Mapping[str, int], period: Period) -> dict[str, str]:
    """The tenants whose names had another's usage in the period before, and since when the names are theirs.
    `added`: when each tenant was added. Raises LedgerUnavailableError."""
    late = [Owner(name, since) for name, since in sorted(added.items()) if since > period.start]
    with ledger.read() as connection:
        return {owner.tenant: iso(owner.since) for owner in _used_before(connection, late, period)}


def _used_before(connection: Connection, owners: list[Owner], period: Period) -> list[Owner]:
    table, reused = rollups.c, []
    for index in range(0, len(owners), _NAMES_AT_A_TIME):
        some = owners[index : index + _NAMES_AT_A_TIME]
        query = (
            select(table.tenant, func.min(table.hour))
            .where(table.tenant.in_([owner.tenant for owner in some]), table.posted >= iso(period.start)[:7])
            .where(table.hour >= period.start - period.start % HOUR, table.hour < period.end)
            .group_by(table.tenant)
        )
        first = {row.tenant: row[1] for row in connection.execute(query)}
        reused += [o for o in some if o.tenant in first and first[o.tenant] < first_hour(connection, o)]
    return reused


def _shared(connection: Connection, owner: Owner, first: str, last: str) -> bool:
    """Whether anything of an earlier tenant is posted to the months."""
    table = rollups.c
    query = select(table.id).where(
        table.tenant == owner.tenant, table.posted.between(first, last), table.hour < owner.hour
    )
    if connection.execute(query.limit(1)).first() is not None:
        return True
    begun = first_hour(connection, owner)
    return begun > owner.hour and first <= iso(begun - 1)[:7] and iso(owner.hour)[:7] <= last


def _resident_before(connection: Connection, owner: Owner, period: Period) -> bool:
    """Whether an earlier tenant's adapters were resident in the month, or engines dedicated to it: a rate
    card may charge for that."""
    spans = engine_spans.c
    query = select(spans.engine).where(
        spans.tenant == owner.tenant, spans.seen > period.start, spans.started < owner.since
    )
    if connection.execute(query.limit(1)).first() is not None:
        return True
    table = residency_spans.c
    query = select(table.version).where(
        table.version.startswith(f"{owner.tenant}/", autoescape=True),
        table.seen > period.start,
        table.started < owner.since,
    )
    return connection.execute(query.limit(1)).first() is not None

"""The terms of a month, and the allocation of its unused time with that of the corrections posted to it.

A correction follows the terms of the month that it corrects: its allocation is what those terms give for the
hours with the correction, less what they gave without it. So a refund reaches those who paid.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import Connection, exists, select

from gateway.costs.allocation import Allocated, AllocationPolicy, PoolSums, allocate, merged
from gateway.costs.cost_lines import CostLine, read_postings
from gateway.costs.periods import iso, month_of
from gateway.costs.policies.standing import history, standing_policy
from gateway.costs.prices.book import PriceBook
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import periods, rollups
from gateway.units import FREE


@dataclass(frozen=True, slots=True)
class MonthTerms:
    policy: AllocationPolicy
    frozen: bool = False
    """Whether the month is closed or being closed, so that they can no longer change."""

    def document(self) -> dict[str, Any]:
        """As a closed month stores them."""
        return {**self.policy.document(), "allocation": 2}  # how, for a release that does it otherwise

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> MonthTerms:
        return cls(AllocationPolicy.of(document), frozen=True)


@dataclass(frozen=True, slots=True)
class MonthAllocation:
    """Unused time allocated in a month."""

    own: Allocated = field(default_factory=dict)
    """The unused time of the month's own hours."""
    corrections: Mapping[str, Allocated] = field(default_factory=dict)
    """What corrections posted to it change, by the month that they correct."""

    @property
    def total(self) -> Allocated:
        return merged(self.own, *self.corrections.values())


def terms_of(connection: Connection, month: str) -> MonthTerms:
    """The terms of a month: as it was closed, or as it would be closed now."""
    return _frozen_terms(connection, month) or MonthTerms(standing_policy(connection, month))


def _frozen_terms(connection: Connection, month: str) -> MonthTerms | None:
    table = periods.c
    query = select(table.policy, table.policy_shares, table.document).where(table.month == month)
    row = connection.execute(query).one_or_none()
    if row is None:
        return None
    terms = json.loads(row.document or "{}").get("terms", {})
    return MonthTerms.of({**terms, "policy": row.policy, "shares": json.loads(row.policy_shares or "{}")})


def allocate_month(
    connection: Connection,
    book: PriceBook,
    month: str,
    terms: MonthTerms,
    lines: Iterable[CostLine],
    tenant_of: Callable[[CostLine], str] = lambda line: line.keys[0],
) -> MonthAllocation:
    """`lines`: all that are posted to the month. `book`: for rates that are not frozen."""
    own = allocate(terms.policy, (line for line in lines if not line.correction), tenant_of)
    return MonthAllocation(own, allocate_corrections(connection, book, month, terms.policy))


def allocate_corrections(
    connection: Connection, book: PriceBook, month: str, policy: AllocationPolicy
) -> dict[str, Allocated]:
    """The allocation of corrections posted to a month, by the month that they correct. `policy`: the month's,
    for usage of a skipped month that was never closed."""
    allocated = {}
    for corrected in _corrected_months(connection, month):
        first, by = _terms_of_corrected(connection, corrected, month, policy)
        if not by.allocates:
            continue
        sums, before = PoolSums(), Allocated()
        if first < month:
            last = iso(month_of(month).start - 1)[:7]
            _add(sums, read_postings(connection, book, corrected, ("tenant",), first=first, last=last))
            before = sums.allocated(by)
        _add(sums, read_postings(connection, book, corrected, ("tenant",), first=month, last=month))
        if change := merged(sums.allocated(by), before, sign=-1):
            allocated[corrected] = change
    return allocated


def _add(sums: PoolSums, lines: Iterable[CostLine]) -> None:
    """Without a price, a correction costs nothing, as when the month is closed."""
    for line in lines:
        sums.add(replace(line, rate_micros=line.rate_micros or FREE), line.keys[0])


def _corrected_months(connection: Connection, month: str) -> list[str]:
    table = rollups.c
    hours = select(table.hour).where(table.posted == month, table.hour < month_of(month).start).distinct()
    return sorted({iso(hour)[:7] for hour in connection.execute(hours).scalars()})


def _terms_of_corrected(
    connection: Connection, corrected: str, month: str, policy: AllocationPolicy
) -> tuple[str, AllocationPolicy]:
    """The month to which usage of the month `corrected` was first posted, and its policy. It is the month
    itself unless it was skipped, because it had no usage when later months were closed."""
    table, period = rollups.c, month_of(corrected)
    closed = select(periods.c.month).where(periods.c.month >= corrected, periods.c.month < month)
    for name in connection.execute(closed.order_by(periods.c.month)).scalars():
        late = exists().where(table.posted == name, table.hour >= period.start, table.hour < period.end)
        if name == corrected or connection.execute(select(late)).scalar():
            return name, terms_of(connection, name).policy
    return month, policy


def policies_at(ledger: Ledger, month: str | None, now: int, tenant: str | None = None) -> dict[str, Any]:
    """What holds for a month as a document, by default the current one. `tenant`: what it may see of it.

    Raises PeriodError, LedgerUnavailableError."""
    name = month or iso(now)[:7]
    month_of(name)
    with ledger.read() as connection:
        terms = terms_of(connection, name)
        policy = terms.policy
        if tenant is not None:
            return {"month": name, "policy": policy.own.get(tenant, policy.name), "frozen": terms.frozen}
        rows = [row.document() for row in history(connection)]
    return {"month": name, **policy.document(), "frozen": terms.frozen, "history": rows}

"""A report's period by month, since each month has terms of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import orjson
from sqlalchemy import Connection, func, select

from gateway.costs.allocation import AllocationPolicy
from gateway.costs.periods import Period, iso, month_of
from gateway.costs.policies.terms import MonthTerms, terms_of
from gateway.costs.prices.book import Series
from gateway.metering.ledger.schema import periods, rollups
from gateway.metering.ledger.sealed_months import check_months

VARIOUS = "various"
"""The policy of a report over months with different ones."""


@dataclass(frozen=True, slots=True)
class Part:
    period: Period
    month: str
    terms: MonthTerms


def parts_of(
    connection: Connection, period: Period, posted: Sequence[str] | None, policy: AllocationPolicy | None
) -> list[Part]:
    """`posted`: the months of a period of whole months. `policy`: instead of the months' own. Only months
    with postings have a part, since a period may be a thousand years; without any, there is one part."""
    if posted is None and policy is not None:
        return [Part(period, iso(period.start)[:7], MonthTerms(policy))]
    if posted is None:
        pieces = _pieces(connection, period)
    else:
        pieces = [(name, month_of(name)) for name in months_with_postings(connection, posted[0], posted[-1])]
    parts = []
    for name, piece in pieces or [(iso(period.start)[:7], period)]:
        terms = terms_of(connection, name)
        if policy is not None and policy != terms.policy:
            terms = MonthTerms(policy)
        parts.append(Part(piece, name, terms))
    return parts


def months_with_postings(connection: Connection, first: str, last: str) -> list[str]:
    table, names = rollups.c, []
    query = select(func.min(table.posted)).where(table.posted >= first, table.posted <= last)
    name = connection.execute(query).scalar_one_or_none()
    while name is not None:
        names.append(name)
        query = select(func.min(table.posted)).where(table.posted > name, table.posted <= last)
        name = connection.execute(query).scalar_one_or_none()
    return names


def _pieces(connection: Connection, period: Period) -> list[tuple[str, Period]]:
    """Usage is posted to its month or later. So none is after the last month with postings, and what is
    before the first is late usage of months that were skipped; it is part of the first piece."""
    names = months_with_postings(connection, "", "9999-12")
    pieces, start = [], period.start
    for name in names:
        end = min(month_of(name).end, period.end)
        if start < end:
            pieces.append((name, Period(start, end)))
            start = end
    return pieces


def policy_name(parts: Sequence[Part], tenants: Sequence[str]) -> str:
    """VARIOUS if months have different ones. `tenants`: of the report; a tenant has its own."""
    policies = [part.terms.policy for part in parts]
    if not tenants:
        same = all(policy == policies[0] for policy in policies)
        return policies[0].name if same else VARIOUS
    names = {policy.own.get(tenants[0], policy.name) for policy in policies}
    return names.pop() if len(names) == 1 else VARIOUS


def state_of(connection: Connection, posted: Sequence[str]) -> str:
    check_months(connection)
    query = select(periods.c.state).where(periods.c.month.between(posted[0], posted[-1]))
    stored = connection.execute(query).scalars().all()
    states = set(stored) if len(stored) == len(posted) else {"open"}
    return next(name for name in ("open", "closing", "closed") if name in states)


def unpriced_when_closed(connection: Connection, posted: Sequence[str]) -> frozenset[Series]:
    """Series without a price when the months were closed."""
    unpriced: set[Series] = set()
    query = select(periods.c.document).where(periods.c.month.in_(posted))
    for document in connection.execute(query).scalars():
        missing = orjson.loads(document or "{}").get("terms", {}).get("missing_prices", ())
        unpriced |= {(gpu_type, region, purchase) for gpu_type, region, purchase in missing}
    return frozenset(unpriced)

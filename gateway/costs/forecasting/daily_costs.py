"""What each UTC day cost, in all and by tenant: what a forecast is made from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from sqlalchemy import Connection

from gateway.costs.owner import Owner
from gateway.costs.periods import DAY, Period, instant, iso, month
from gateway.costs.reports.customer_report import read_charged
from gateway.costs.reports.report import Question, read_report

PLACES = 15
"""Decimal places of costs as integers."""
_UNUSED = ("headroom", "startup", "idle")

Series = Mapping[int, int]
"""Start of a day → its cost in 10**-15 of the currency; days without cost may be left out."""


@dataclass(slots=True)
class DailyCosts:
    """Mutable while it is read."""

    currency: str | None = None
    whole: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))
    """Everything: delivered, wasted and unused time."""
    tenants: defaultdict[str, defaultdict[int, int]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(int))
    )
    """What each tenant is charged: its delivered requests, and what the policy of the month adds."""
    missing_prices: list[Any] = field(default_factory=list)
    """As in the report: some of the costs are unknown."""
    policies: dict[str, str] = field(default_factory=dict)
    """Month → the policy by which unused time is shared in it."""

    def forget(self, since: int) -> None:
        """Drop the days from `since` on."""
        for days in (self.whole, *self.tenants.values()):
            for day in [day for day in days if day >= since]:
                del days[day]


def read_daily_costs(
    connection: Connection, period: Period, *, tenants: tuple[str, ...] = (), owner: Owner | None = None
) -> DailyCosts:
    """Of each month that the period touches, as posted and without corrections of earlier months. `tenants`:
    only of these, and nothing in `whole`. `owner`: as its own reports show them, by rate card if it has
    one."""
    found = DailyCosts()
    for name in months_of(period):
        whole = month(name)
        question = Question(whole, ("tenant", "day"), tenants)
        report = (
            read_report(connection, question) if owner is None else read_charged(connection, question, owner)
        )
        found.currency = found.currency or report["currency"]
        found.missing_prices += [p for p in report["missing_prices"] if p not in found.missing_prices]
        found.policies[name] = report["policy"]
        _add(found, report, whole, period.end)
    return found


def months_of(period: Period) -> Iterator[str]:
    """The months that the period touches, in order."""
    at = period.start
    while at < period.end:
        yield iso(at)[:7]
        at = month(iso(at)[:7]).end


def units(text: str | None) -> int:
    """10**-15 of an amount; 0 for an unknown one."""
    return 0 if text is None else int(Fraction(text) * 10**PLACES)


def _add(found: DailyCosts, report: Mapping[str, Any], whole: Period, until: int) -> None:
    for row in report["rows"]:
        charged = units(row["cost"]) + units(row.get("allocated_cost"))
        days = found.tenants[row["tenant"]]
        if row["day"]:
            days[_day(row["day"])] += charged
        else:  # a share that no use of a day explains
            _spread(days, charged, range(whole.start, min(whole.end, until), DAY))
        if row["day"]:
            found.whole[_day(row["day"])] += units(row["cost"])
    for bucket in ("retry_waste", *_UNUSED):
        for row in report.get(bucket, {"rows": ()})["rows"]:
            found.whole[_day(row["day"])] += units(row["cost"])


def _spread(days: defaultdict[int, int], cost: int, over: range) -> None:
    each, left = divmod(cost, max(len(over), 1))
    for day in over:
        days[day] += each
    if over:
        days[over[-1]] += left


def _day(text: str) -> int:
    return instant("day", text)

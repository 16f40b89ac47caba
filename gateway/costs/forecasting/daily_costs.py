"""What each UTC day cost, in all and by tenant: what a forecast is made from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection

from gateway.costs.owner import Owner
from gateway.costs.periods import Period, instant, iso, month_of
from gateway.costs.reports.customer_report import read_charged
from gateway.costs.reports.report import Question, read_report
from gateway.units import DAY, NOTHING, Amount, amount_of

_UNUSED = ("headroom", "startup", "idle")

Series = Mapping[int, Amount]
"""Start of a day → its cost; days without cost may be left out."""


@dataclass(slots=True)
class DailyCosts:
    """Mutable while it is read."""

    currency: str | None = None
    everything: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))
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
        for days in (self.everything, *self.tenants.values()):
            for day in [day for day in days if day >= since]:
                del days[day]


def read_daily_costs(
    connection: Connection, period: Period, *, tenants: tuple[str, ...] = (), owner: Owner | None = None
) -> DailyCosts:
    """The costs of each month that the period touches, as posted and without corrections of earlier months.
    `tenants`: only of these, and nothing in `everything`. `owner`: as its own reports show them, by rate card
    if it has one."""
    daily = DailyCosts()
    for name in months_of(period):
        month_period = month_of(name)
        question = Question(month_period, ("tenant", "day"), tenants, amounts=False)
        report = (
            read_report(connection, question) if owner is None else read_charged(connection, question, owner)
        )
        daily.currency = daily.currency or report["currency"]
        daily.missing_prices += [p for p in report["missing_prices"] if p not in daily.missing_prices]
        daily.policies[name] = report["policy"]
        _add(daily, report, month_period, period.end)
    return daily


def months_of(period: Period) -> Iterator[str]:
    """The months that the period touches, in order."""
    start = period.start
    while start < period.end:
        yield iso(start)[:7]
        start = month_of(iso(start)[:7]).end


def _cost(text: str | None) -> Amount:
    """0 for an unknown one."""
    return NOTHING if text is None else amount_of(text)


def _add(daily: DailyCosts, report: Mapping[str, Any], period: Period, until: int) -> None:
    for row in report["rows"]:
        charged = _cost(row["cost"]) + _cost(row.get("allocated_cost"))
        days = daily.tenants[row["tenant"]]
        if row["day"]:
            days[_day(row["day"])] += charged
        else:  # a share that no use of a day explains
            _spread(days, charged, range(period.start, min(period.end, until), DAY))
        if row["day"]:
            daily.everything[_day(row["day"])] += _cost(row["cost"])
    for bucket in ("retry_waste", *_UNUSED):
        for row in report.get(bucket, {"rows": ()})["rows"]:
            daily.everything[_day(row["day"])] += _cost(row["cost"])


def _spread(days: defaultdict[int, int], cost: int, over: range) -> None:
    each, left = divmod(cost, max(len(over), 1))
    for day in over:
        days[day] += each
    if over:
        days[over[-1]] += left


def _day(text: str) -> int:
    return instant("day", text)

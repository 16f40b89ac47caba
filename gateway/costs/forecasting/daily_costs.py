"""What each UTC day cost in all, and what each tenant is charged for it: what a forecast is made from.

A tenant with a rate card in the month that is looked at is charged by it, at list prices: before allowance,
tiers, discounts and minimum, which are the month's. Days of earlier months have the same prices, so that a
new card is no change of what is used.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import Connection

from gateway.costs.cost_lines import CostLine, read_lines
from gateway.costs.owner import Owner
from gateway.costs.periods import Period, instant, iso, month_of
from gateway.costs.prices.book import PriceBook
from gateway.costs.prices.price_store import read_prices
from gateway.costs.reports.customer_report import read_charged
from gateway.costs.reports.report import Question, read_report
from gateway.costs.selling.assignments import Assignment, RateCards
from gateway.costs.selling.cards import RateCard
from gateway.costs.selling.posted import PRICED_BY, key_of, tokens_of
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
    """What each tenant is charged: by its card, or at cost, with what the policy of the month adds."""
    missing_prices: list[Any] = field(default_factory=list)
    """As in the report: some of the costs are unknown."""
    policies: dict[str, str] = field(default_factory=dict)
    """Month → the policy by which unused time is shared in it."""

    def forget(self, since: int) -> None:
        """Drop the days from `since` on."""
        for days in (self.everything, *self.tenants.values()):
            for day in [day for day in days if day >= since]:
                del days[day]


@dataclass(frozen=True, slots=True)
class StandingCards:
    """The cards of the month that is looked at."""

    cards: RateCards
    month: str

    def card(self, tenant: str) -> RateCard | None:
        return self.cards.card(tenant, self.month)

    def charge(self, line: CostLine, tenant: str, adapter: str, base_model: str) -> Amount:
        """What a tenant is charged for a line of its usage, by its card or at cost; nothing for an unknown
        cost."""
        card = self.card(tenant)
        if card is None:
            return line.cost or NOTHING
        return card.list_price(key_of(line, adapter, base_model), tokens_of(line))

    def of_all_months(self, tenant: str) -> RateCards:
        """The tenant's card as that of every month; without one, what it has in each."""
        card, first = self.card(tenant), "1970-01"
        if card is None:
            return self.cards
        return RateCards(
            (replace(card, valid_from=first),), (Assignment(tenant, card.name, first, recorded_at=0),)
        )


def read_daily_costs(
    connection: Connection,
    period: Period,
    standing: StandingCards,
    *,
    tenants: tuple[str, ...] = (),
    owner: Owner | None = None,
) -> DailyCosts:
    """The costs of each month that the period touches, as posted and without corrections of earlier months.
    `tenants`: only of these, and nothing in `everything`. `owner`: without what an earlier tenant of its name
    used."""
    daily = DailyCosts()
    for name in months_of(period):
        month_period = month_of(name)
        question = Question(month_period, ("tenant", "day"), tenants, amounts=False)
        report = (
            read_report(connection, question)
            if owner is None
            else read_charged(connection, question, owner, standing.of_all_months(owner.tenant))
        )
        daily.currency = daily.currency or report["currency"]
        daily.missing_prices += [p for p in report["missing_prices"] if p not in daily.missing_prices]
        daily.policies[name] = report["policy"]
        _add(daily, report, month_period, period.end)
    if owner is None and standing.cards.cards:
        _charge(connection, daily, standing, period, tenants)
    return daily


def _charge(
    connection: Connection,
    daily: DailyCosts,
    standing: StandingCards,
    period: Period,
    tenants: tuple[str, ...],
) -> None:
    """Replace the costs of tenants with a card by what they are charged."""
    charged = {tenant for tenant in daily.tenants if standing.card(tenant) is not None}
    for tenant in charged:
        daily.tenants[tenant].clear()
    book, by = PriceBook(read_prices(connection)), ("tenant", "day", *PRICED_BY)
    for name in months_of(period) if charged else ():
        for line in read_lines(
            connection, book, month_of(name), by, tenants=tenants, corrections=False, buckets=("usage",)
        ):
            tenant, day, adapter, base_model = line.keys
            if tenant in charged:
                amount = standing.charge(line, tenant, adapter, base_model)
                daily.tenants[tenant][_day(day)] += amount


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

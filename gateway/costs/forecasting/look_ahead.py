"""One look at the present month: forecasts, budgets and anomalies. What the API, the metrics and the alerts
show is this, so that they always agree."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any, Literal

from sqlalchemy import Connection, func, select

from gateway.costs.cost_lines import effective, read_lines
from gateway.costs.forecasting.anomalies import HABIT_DAYS, Anomaly, Bounds, idlers, spikes
from gateway.costs.forecasting.budgets import Budget, read_budgets, status, used_percent
from gateway.costs.forecasting.daily_costs import DailyCosts, StandingCards, read_daily_costs
from gateway.costs.forecasting.forecast import HISTORY_DAYS, Confidence, Forecast, forecast
from gateway.costs.owner import Owner
from gateway.costs.periods import Period, PeriodError, instant, iso, month_of
from gateway.costs.prices.book import PriceBook
from gateway.costs.prices.price_store import read_prices
from gateway.costs.selling.card_store import read_cards
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import engine_hours
from gateway.units import CENT, DAY, NOTHING, Amount, amount_text, decimal_of, decimal_text

_UNUSED_OF_AN_ENGINE = ("idle", "startup")
PricedBy = Literal["cost", "rate_card"]
"""In which terms amounts about a tenant are: what it costs, or what it is charged."""


@dataclass(frozen=True, slots=True)
class LookAhead:
    month: str
    today: int
    """Start of the first day that is not complete."""
    daily: DailyCosts
    everything: Forecast
    tenants: Mapping[str, Forecast]
    budgets: Mapping[str, Budget]
    """By tenant; "" is the whole installation's."""
    standing: StandingCards

    def priced_by(self, tenant: str) -> PricedBy:
        return "cost" if self.standing.card(tenant) is None else "rate_card"

    def of(self, tenant: str) -> Forecast:
        """The tenant's forecast, or the whole installation's for ""."""
        if not tenant:
            return self.everything
        return self.tenants.get(tenant) or Forecast(NOTHING, None, None, None, 0, "none")


def look_ahead(
    connection: Connection,
    name: str,
    *,
    now: int,
    tenants: tuple[str, ...] = (),
    confidence: Confidence = 80,
    as_of: int | None = None,
    owner: Owner | None = None,
) -> LookAhead:
    """A month and its budgets. `tenants`, `owner`: see `read_daily_costs`. `as_of`: as if only the days
    before it were known. Raises PeriodError for a month that has not begun."""
    period = month_of(name)
    if period.start > now:
        raise PeriodError("month", f"month: {name} has not begun; there is nothing to forecast from.")
    if as_of is not None and not period.start < as_of <= now:
        raise PeriodError("as_of", f"as_of: {iso(as_of)} must be after the month's start, and not after now.")
    now = now if as_of is None else as_of
    today = min(now - now % DAY, period.end)
    read = Period(max(0, min(period.start, today - HISTORY_DAYS * DAY)), period.end)
    if today == period.end:  # nothing is to come, so no history is needed
        read = period
    standing = StandingCards(read_cards(connection), name)
    daily = read_daily_costs(connection, read, standing, tenants=tenants, owner=owner)
    if as_of is not None:
        daily.forget(today)
    budgets = read_budgets(connection, name)
    if owner is not None:
        budgets = {tenant: known for tenant, known in budgets.items() if known.recorded_at >= owner.since}
    shown = {t for t, days in daily.tenants.items() if any(period.start <= d < period.end for d in days)}
    shown |= {tenant for tenant in budgets if tenant}
    if tenants:
        shown = {tenant for tenant in shown if set(tenants) == {tenant}}
        budgets = {tenant: budget for tenant, budget in budgets.items() if tenant in shown}
    return LookAhead(
        month=name,
        today=today,
        daily=daily,
        everything=forecast(daily.everything, period, today, confidence),
        tenants={t: forecast(daily.tenants.get(t, {}), period, today, confidence) for t in sorted(shown)},
        budgets=budgets,
        standing=standing,
    )


def find_anomalies(connection: Connection, *, now: int, bounds: Bounds = Bounds()) -> list[Anomaly]:  # noqa: B008  # frozen
    """As of today so far and yesterday, the most expensive first."""
    today = now - now % DAY
    # Twice the habit: an unbroken run of odd days is followed back.
    period = Period(max(0, today - 2 * HABIT_DAYS * DAY), today + DAY)
    book = PriceBook(read_prices(connection))
    standing = StandingCards(read_cards(connection), iso(now)[:7])
    everything: Counter[int] = Counter()
    adapters: defaultdict[str, Counter[int]] = defaultdict(Counter)
    tenants: defaultdict[str, Counter[int]] = defaultdict(Counter)
    for line in read_lines(connection, book, period, ("day", "tenant", "adapter", "base_model")):
        day, tenant, adapter, base_model = line.keys
        start = _start(day)
        everything[start] += line.cost or 0
        at_cost = line.bucket == "retry_waste" and standing.card(tenant) is None
        if tenant and (line.bucket == "usage" or at_cost):
            charge = standing.charge(line, tenant, adapter, base_model)
            tenants[tenant][start] += charge
            if adapter:
                adapters[adapter][start] += charge
    anomalies = [
        *spikes("tenant", tenants, everything, today, bounds),
        *spikes("adapter", adapters, everything, today, bounds),
        *idlers(_engines(connection, book, period), today, bounds),
    ]
    anomalies = [
        replace(anomaly, by_card=bool(anomaly.tenant) and standing.card(anomaly.tenant) is not None)
        for anomaly in anomalies
    ]
    return sorted(anomalies, key=lambda a: (-a.cost, a.kind, a.subject))


def forecast_report(
    ledger: Ledger,
    name: str,
    *,
    now: int,
    tenants: tuple[str, ...] = (),
    confidence: Confidence = 80,
    as_of: int | None = None,
    owner: Owner | None = None,
) -> dict[str, Any]:
    """As a document. `tenants`: of these alone, without the whole. `as_of`, `owner`: see `look_ahead`. Raises
    PeriodError, LedgerUnavailableError."""
    with ledger.read() as connection:
        look = look_ahead(
            connection, name, now=now, tenants=tenants, confidence=confidence, as_of=as_of, owner=owner
        )
    days = (month_of(name).end - month_of(name).start) // DAY
    return {
        "month": name,
        "currency": look.daily.currency,
        "as_of": iso(min(now, month_of(name).end) if as_of is None else look.today),
        "complete_days": max(0, look.today - month_of(name).start) // DAY,
        "days": days,
        "confidence_percent": confidence,
        "policy": look.daily.policies.get(name, "none"),
        "missing_prices": look.daily.missing_prices,
        **({} if tenants else {"installation": {**_figures(look.everything), **_against(look, "")}}),
        "rows": [{"tenant": t, **_figures(f), **_against(look, t)} for t, f in look.tenants.items()],
    }


def budget_report(
    ledger: Ledger, name: str, *, now: int, tenants: tuple[str, ...] = (), owner: Owner | None = None
) -> dict[str, Any]:
    """The budgets of a month and how it stands against them, the whole installation's first. Raises
    PeriodError, LedgerUnavailableError."""
    with ledger.read() as connection:
        look = look_ahead(connection, name, now=now, tenants=tenants, owner=owner)
    return {
        "month": name,
        "currency": look.daily.currency,
        "as_of": iso(min(now, month_of(name).end)),
        "missing_prices": look.daily.missing_prices,
        "data": [
            {**budget.document(), **_figures(look.of(tenant)), **_against(look, tenant)}
            for tenant, budget in look.budgets.items()
        ],
    }


def anomaly_report(ledger: Ledger, *, now: int, bounds: Bounds) -> dict[str, Any]:
    """Raises LedgerUnavailableError."""
    with ledger.read() as connection:
        anomalies = find_anomalies(connection, now=now, bounds=bounds)
        currency = PriceBook(read_prices(connection)).currency
    return {
        "currency": currency,
        "as_of": iso(now),
        "factor": decimal_of(bounds.factor),
        "idle_percent": decimal_of(bounds.idle_percent),
        "data": [anomaly_document(anomaly) for anomaly in anomalies],
    }


def anomaly_document(anomaly: Anomaly) -> dict[str, Any]:
    """An engine's `ratio` is the idle part of its time; of a tenant or adapter, cost by habit."""
    return {
        "kind": anomaly.kind,
        "subject": anomaly.subject,
        "tenant": anomaly.tenant or None,
        "day": iso(anomaly.day)[:10],
        "since": iso(anomaly.since)[:10],
        "priced_by": "rate_card" if anomaly.by_card else "cost",
        "cost": amount_text(anomaly.cost),
        "habit": None if anomaly.habit is None else amount_text(anomaly.habit),
        "ratio": decimal_of(anomaly.ratio, 4),
    }


def estimate(cost: Amount | None) -> str | None:
    """An estimated amount in whole cents: more digits would claim more than it knows."""
    return None if cost is None else decimal_text(round(Fraction(cost, CENT)), 2)


def _figures(outlook: Forecast) -> dict[str, Any]:
    return {
        "so_far": amount_text(outlook.so_far),
        "expected": estimate(outlook.expected),
        "low": estimate(outlook.low),
        "high": estimate(outlook.high),
        "days_known": outlook.days_known,
        "method": outlook.method,
    }


def _against(look: LookAhead, tenant: str) -> dict[str, Any]:
    budget = look.budgets.get(tenant)
    priced_by = look.priced_by(tenant) if tenant else "cost"
    if budget is None:
        return {"priced_by": priced_by, "budget": None, "status": None, "used_percent": None}
    outlook = look.of(tenant)
    return {
        "priced_by": priced_by,
        "budget": budget.document()["amount"],
        "status": status(budget, outlook),
        "used_percent": used_percent(budget, outlook),
    }


def _engines(
    connection: Connection, book: PriceBook, period: Period
) -> dict[str, dict[int, tuple[int, int, Amount]]]:
    """By engine and day: nano-GPU-hours without requests, all of them, and the cost of the first."""
    unused: defaultdict[tuple[str, int], list[int]] = defaultdict(lambda: [0, 0])
    for line in read_lines(connection, book, period, ("day", "engine"), buckets=_UNUSED_OF_AN_ENGINE):
        day, engine = line.keys
        sums = unused[engine, _start(day)]
        sums[0] += line.nano_gpu_hours
        sums[1] += line.cost or 0
    table, hours = engine_hours.c, effective(period)
    start = table.hour - table.hour % DAY
    query = select(table.engine, start, func.sum(table.nano_gpu_hours)).where(
        table.engine != "", table.hour >= hours.start, table.hour < hours.end
    )
    engines: defaultdict[str, dict[int, tuple[int, int, Amount]]] = defaultdict(dict)
    for engine, start_of_day, nano in connection.execute(query.group_by(table.engine, start)):
        idle, cost = unused[engine, start_of_day]
        engines[engine][start_of_day] = idle, int(nano), Amount(cost)
    return engines


@lru_cache(maxsize=1000)  # lines repeat the same few days thousands of times
def _start(day: str) -> int:
    return instant("day", day)

"""One look at the present month: forecasts, budgets and anomalies. What the API, the metrics and the alerts
show is this, so that they always agree."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

from sqlalchemy import Connection

from gateway.costs.cost_lines import read_lines
from gateway.costs.forecasting.anomalies import HABIT_DAYS, Anomaly, Bounds, idlers, spikes
from gateway.costs.forecasting.budgets import Budget, read_budgets, status, used_percent
from gateway.costs.forecasting.daily_costs import PLACES, DailyCosts, read_daily_costs
from gateway.costs.forecasting.forecast import HISTORY_DAYS, Confidence, Forecast, forecast
from gateway.costs.owner import Owner
from gateway.costs.periods import DAY, Period, PeriodError, instant, iso, month
from gateway.costs.prices.amounts import decimal_of, decimal_text
from gateway.costs.prices.book import PriceBook
from gateway.costs.prices.price_store import read_prices
from gateway.costs.selling.card_store import read_cards
from gateway.metering.ledger.ledger import Ledger

_UNUSED_OF_AN_ENGINE = ("idle", "startup")
NO_BUDGETS = "Budgets and alerts are about the cost; a rate card sets what you are charged."
"""Why a tenant with a rate card sees neither: its share of a budget would tell the cost."""


@dataclass(frozen=True, slots=True)
class LookAhead:
    month: str
    today: int
    """Start of the first day that is not complete."""
    daily: DailyCosts
    whole: Forecast
    tenants: Mapping[str, Forecast]
    budgets: Mapping[str, Budget]
    """By tenant; "" is the whole installation's."""
    by_card: bool = False
    """Whether its reader is charged by a rate card in this month."""

    def of(self, tenant: str) -> Forecast:
        """The tenant's forecast, or the whole installation's for ""."""
        if not tenant:
            return self.whole
        return self.tenants.get(tenant) or Forecast(0, None, None, None, 0, "none")


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
    whole = month(name)
    if whole.start > now:
        raise PeriodError("month", f"month: {name} has not begun; there is nothing to forecast from.")
    if as_of is not None and not whole.start < as_of <= now:
        raise PeriodError("as_of", f"as_of: {iso(as_of)} must be after the month's start, and not after now.")
    now = now if as_of is None else as_of
    today = min(now - now % DAY, whole.end)
    read = Period(max(0, min(whole.start, today - HISTORY_DAYS * DAY)), whole.end)
    if today == whole.end:  # nothing is to come, so no history is needed
        read = whole
    daily = read_daily_costs(connection, read, tenants=tenants, owner=owner)
    if as_of is not None:
        daily.forget(today)
    by_card = owner is not None and read_cards(connection).card(owner.tenant, name) is not None
    budgets = {} if by_card else read_budgets(connection, name)
    if owner is not None:
        budgets = {tenant: one for tenant, one in budgets.items() if one.recorded_at >= owner.since}
    shown = {t for t, days in daily.tenants.items() if any(whole.start <= d < whole.end for d in days)}
    shown |= {tenant for tenant in budgets if tenant}
    if tenants:
        shown = {tenant for tenant in shown if set(tenants) == {tenant}}
        budgets = {tenant: budget for tenant, budget in budgets.items() if tenant in shown}
    return LookAhead(
        month=name,
        today=today,
        daily=daily,
        whole=forecast(daily.whole, whole, today, confidence),
        tenants={t: forecast(daily.tenants.get(t, {}), whole, today, confidence) for t in sorted(shown)},
        budgets=budgets,
        by_card=by_card,
    )


def find_anomalies(connection: Connection, *, now: int, bounds: Bounds = Bounds()) -> list[Anomaly]:  # noqa: B008  # frozen
    """As of today so far and yesterday, the most expensive first."""
    today = now - now % DAY
    # Twice the habit: an unbroken run of odd days is followed back.
    period = Period(max(0, today - 2 * HABIT_DAYS * DAY), today + DAY)
    book = PriceBook(read_prices(connection))
    whole: defaultdict[int, int] = defaultdict(int)
    adapters: defaultdict[str, defaultdict[int, int]] = defaultdict(lambda: defaultdict(int))
    tenants: defaultdict[str, defaultdict[int, int]] = defaultdict(lambda: defaultdict(int))
    for line in read_lines(connection, book, period, ("day", "tenant", "adapter")):
        day, tenant, adapter = line.keys
        at, cost = _start(day), line.cost or 0
        whole[at] += cost
        if tenant and line.bucket in {"usage", "retry_waste"}:
            tenants[tenant][at] += cost
            if adapter:
                adapters[adapter][at] += cost
    found = [
        *spikes("tenant", tenants, whole, today, bounds),
        *spikes("adapter", adapters, whole, today, bounds),
        *idlers(_engines(connection, book, period), today, bounds),
    ]
    return sorted(found, key=lambda a: (-a.cost, a.kind, a.subject))


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
        found = look_ahead(
            connection, name, now=now, tenants=tenants, confidence=confidence, as_of=as_of, owner=owner
        )
    days = (month(name).end - month(name).start) // DAY
    return {
        "month": name,
        "currency": found.daily.currency,
        "as_of": iso(min(now, month(name).end) if as_of is None else found.today),
        "complete_days": max(0, found.today - month(name).start) // DAY,
        "days": days,
        "confidence_percent": confidence,
        "policy": found.daily.policies.get(name, "none"),
        "missing_prices": found.daily.missing_prices,
        **({} if tenants else {"whole": {**_figures(found.whole), **_against(found, "")}}),
        "rows": [{"tenant": t, **_figures(f), **_against(found, t)} for t, f in found.tenants.items()],
        **({} if owner is None else _priced_by(found)),
    }


def budget_report(
    ledger: Ledger, name: str, *, now: int, tenants: tuple[str, ...] = (), owner: Owner | None = None
) -> dict[str, Any]:
    """The budgets of a month and how it stands against them, the whole installation's first. Raises
    PeriodError, LedgerUnavailableError."""
    with ledger.read() as connection:
        found = look_ahead(connection, name, now=now, tenants=tenants, owner=owner)
    return {
        "month": name,
        "currency": found.daily.currency,
        "as_of": iso(min(now, month(name).end)),
        "missing_prices": found.daily.missing_prices,
        "data": [
            {**budget.document(), **_figures(found.of(tenant)), **_against(found, tenant)}
            for tenant, budget in found.budgets.items()
        ],
        **({} if owner is None else _priced_by(found)),
    }


def _priced_by(found: LookAhead) -> dict[str, Any]:
    priced = {"priced_by": "rate_card" if found.by_card else "cost"}
    return {**priced, "note": NO_BUDGETS} if found.by_card else priced


def anomaly_report(ledger: Ledger, *, now: int, bounds: Bounds) -> dict[str, Any]:
    """Raises LedgerUnavailableError."""
    with ledger.read() as connection:
        found = find_anomalies(connection, now=now, bounds=bounds)
        currency = PriceBook(read_prices(connection)).currency
    return {
        "currency": currency,
        "as_of": iso(now),
        "factor": decimal_of(bounds.factor),
        "idle_percent": decimal_of(bounds.idle_percent),
        "data": [anomaly_document(anomaly) for anomaly in found],
    }


def anomaly_document(anomaly: Anomaly) -> dict[str, Any]:
    """An engine's `ratio` is the idle part of its time; of a tenant or adapter, cost by habit."""
    return {
        "kind": anomaly.kind,
        "subject": anomaly.subject,
        "tenant": anomaly.tenant or None,
        "day": iso(anomaly.day)[:10],
        "since": iso(anomaly.since)[:10],
        "cost": decimal_text(anomaly.cost, PLACES),
        "habit": None if anomaly.habit is None else decimal_text(anomaly.habit, PLACES),
        "ratio": decimal_of(anomaly.ratio, 4),
    }


def estimate(cost: int | None) -> str | None:
    """An estimated amount in whole cents: more digits would claim more than it knows."""
    return None if cost is None else decimal_text(round(Fraction(cost, 10 ** (PLACES - 2))), 2)


def _figures(found: Forecast) -> dict[str, Any]:
    return {
        "so_far": decimal_text(found.so_far, PLACES),
        "expected": estimate(found.expected),
        "low": estimate(found.low),
        "high": estimate(found.high),
        "days_known": found.days_known,
        "method": found.method,
    }


def _against(found: LookAhead, tenant: str) -> dict[str, Any]:
    budget = found.budgets.get(tenant)
    if budget is None:
        return {"budget": None, "status": None, "used_percent": None}
    of = found.of(tenant)
    return {
        "budget": budget.document()["amount"],
        "status": status(budget, of),
        "used_percent": used_percent(budget, of),
    }


def _engines(
    connection: Connection, book: PriceBook, period: Period
) -> dict[str, dict[int, tuple[int, int, int]]]:
    sums: defaultdict[tuple[str, int], list[int]] = defaultdict(lambda: [0, 0, 0])
    for line in read_lines(connection, book, period, ("day", "engine")):
        day, engine = line.keys
        if engine:
            unused = int(line.bucket in _UNUSED_OF_AN_ENGINE)
            of = sums[engine, _start(day)]
            of[0] += line.nano_gpu_hours * unused
            of[1] += line.nano_gpu_hours
            of[2] += (line.cost or 0) * unused
    found: defaultdict[str, dict[int, tuple[int, int, int]]] = defaultdict(dict)
    for (engine, at), (idle, all_, cost) in sums.items():
        found[engine][at] = idle, all_, cost
    return found


@lru_cache(maxsize=1000)  # lines repeat the same few days thousands of times
def _start(day: str) -> int:
    return instant("day", day)

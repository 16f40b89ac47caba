"""Budgets for cost: what a tenant, or the whole installation, may cost in a UTC month.

They only warn. A hard limit, which refuses requests, is a tenant's own budget: see docs/limits.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import Connection, insert, select

from gateway.costs.field_error import FieldError
from gateway.costs.forecasting.forecast import Forecast
from gateway.costs.periods import iso, month_of
from gateway.costs.prices.price_store import read_prices
from gateway.metering.ledger.audit_log import record
from gateway.metering.ledger.continuity import next_batch
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import cost_budgets as table
from gateway.metering.ledger.schema import rollups
from gateway.units import Amount, Micros, micros_text, typed_units, worth

_LARGEST = 10**12
ENOUGH_DAYS = 7
"""Days of history from which on a forecast alone raises an alert."""

Status = Literal["within", "warning", "forecast_over", "reached"]


class BudgetError(FieldError):
    """An invalid budget. `param` names the field."""


@dataclass(frozen=True, slots=True)
class Budget:
    id: int
    tenant: str
    """Empty: the whole installation."""
    month: str
    """The first month that it applies to."""
    amount_micros: Micros | None
    """Per month; None: no budget from that month on."""
    currency: str
    warn_percent: int
    recorded_at: int

    @property
    def amount(self) -> Amount:
        return worth(self.amount_micros or Micros(0))

    def document(self) -> dict[str, Any]:
        return {
            "tenant": self.tenant or None,
            "first_month": self.month,
            "amount": None if self.amount_micros is None else micros_text(self.amount_micros),
            "currency": self.currency,
            "warn_percent": self.warn_percent,
            "recorded_at": iso(self.recorded_at),
        }


def status(budget: Budget, forecast: Forecast) -> Status:
    """How a month stands against a budget, the worst that holds."""
    if forecast.so_far >= budget.amount:
        return "reached"
    sure = forecast.method == "actual" or forecast.days_known >= ENOUGH_DAYS
    if sure and forecast.expected is not None and forecast.expected > budget.amount:
        return "forecast_over"
    if forecast.so_far * 100 >= budget.amount * budget.warn_percent:
        return "warning"
    return "within"


def used_percent(budget: Budget, forecast: Forecast) -> str | None:
    """Part of the amount that is used, in percent with one decimal place; None for an amount of 0."""
    if not budget.amount:
        return None
    tenths = forecast.so_far * 1000 // budget.amount
    return f"{tenths // 10}.{tenths % 10}"


def read_budgets(connection: Connection, name: str) -> dict[str, Budget]:
    """The budgets that apply to a month, by tenant."""
    return in_force(_rows(connection), name)


def in_force(budgets: Iterable[Budget], name: str) -> dict[str, Budget]:
    """The budgets that apply to the month. `budgets`: all ever recorded, in order of their ids."""
    latest: dict[str, Budget] = {}
    for budget in budgets:
        before = latest.get(budget.tenant)
        if budget.month <= name and (before is None or budget.month >= before.month):
            latest[budget.tenant] = budget
    return {tenant: b for tenant, b in sorted(latest.items()) if b.amount_micros is not None}


def set_budget(
    ledger: Ledger,
    *,
    tenant: str,
    amount: str | None,
    first: str | None,
    warn_percent: int,
    now: int,
    known: bool = True,
    actor: str = "",
) -> tuple[Budget | None, bool]:
    """Set a budget from the month `first` on (default: this month), or with `amount` None remove it. Returns
    what applies then, and whether anything changed. `known`: whether the registry has the tenant; otherwise
    it must have usage. `actor`: recorded in the audit log.

    Raises BudgetError, LedgerUnavailableError."""
    name = iso(now)[:7] if first is None else first
    month_of(name)
    micros = None if amount is None else _micros(amount)
    with ledger.write() as connection:
        next_batch(connection)  # two at once would each see the other's absence
        if micros is not None and not (known or _has_usage(connection, tenant)):
            raise BudgetError("tenant", f"There is no tenant {tenant[:80]!r}, and no usage of one.")
        standing = read_budgets(connection, name).get(tenant)
        currency = next((price.currency for price in read_prices(connection)), "")
        if micros is not None and not currency:
            raise BudgetError("amount", "There is no price yet, and so no currency: add a price first.")
        requested = (micros, warn_percent)
        same = requested == (standing.amount_micros, standing.warn_percent) if standing else micros is None
        if same:
            return standing, False
        values = {
            "tenant": tenant, "month": name, "amount_micros": micros, "currency": currency,
            "warn_percent": warn_percent, "recorded_at": now,
        }  # fmt: skip  # a row
        row = connection.execute(insert(table).values(values).returning(table)).mappings().one()
        budget = Budget(**row)
        action = "cost_budget.remove" if micros is None else "cost_budget.set"
        record(connection, actor, action, tenant or "installation", budget.document(), now)
        return (None if micros is None else budget), True


def _has_usage(connection: Connection, tenant: str) -> bool:
    query = select(rollups.c.id).where(rollups.c.tenant == tenant).limit(1)
    return connection.execute(query).first() is not None


def _rows(connection: Connection) -> list[Budget]:
    return [Budget(**row) for row in connection.execute(select(table).order_by(table.c.id)).mappings()]


def _micros(text: str) -> Micros:
    amount = typed_units(text, 6, _LARGEST)
    if amount is None:
        raise BudgetError(
            "amount", f"amount: {text[:40]!r} is not a decimal of at most six places, 0 to {_LARGEST}."
        )
    return Micros(amount)

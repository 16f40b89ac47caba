"""Budgets for cost: what a tenant, or the whole installation, may cost in a UTC month.

They only warn. A hard limit, which refuses requests, is a tenant's own budget: see docs/limits.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, Literal

from sqlalchemy import Connection, insert, select

from gateway.costs.field_error import FieldError
from gateway.costs.forecasting.forecast import Forecast
from gateway.costs.periods import iso, month
from gateway.costs.prices.amounts import decimal_text
from gateway.costs.prices.price_store import read_prices
from gateway.metering.ledger.audit_log import record
from gateway.metering.ledger.continuity import next_batch
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import cost_budgets as table
from gateway.metering.ledger.schema import rollups

_LARGEST = Decimal(10**12)
_MICROS = 10**9
"""10**-15 of the currency in a millionth of it."""
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
    amount_micros: int | None
    """Millionths of the currency per month; None: no budget from that month on."""
    currency: str
    warn_percent: int
    recorded_at: int

    @property
    def amount(self) -> int:
        """10**-15 of the currency."""
        return (self.amount_micros or 0) * _MICROS

    def document(self) -> dict[str, Any]:
        return {
            "tenant": self.tenant or None,
            "from": self.month,
            "amount": None if self.amount_micros is None else decimal_text(self.amount_micros, 6),
            "currency": self.currency,
            "warn_percent": self.warn_percent,
            "recorded_at": iso(self.recorded_at),
        }


def status(budget: Budget, found: Forecast) -> Status:
    """How a month stands against a budget, the worst that holds."""
    if found.so_far >= budget.amount:
        return "reached"
    sure = found.method == "actual" or found.days_known >= ENOUGH_DAYS
    if sure and found.expected is not None and found.expected > budget.amount:
        return "forecast_over"
    if found.so_far * 100 >= budget.amount * budget.warn_percent:
        return "warning"
    return "within"


def used_percent(budget: Budget, found: Forecast) -> str | None:
    """Part of the amount that is used, in percent with one decimal place; None for an amount of 0."""
    if not budget.amount:
        return None
    tenths = found.so_far * 1000 // budget.amount
    return f"{tenths // 10}.{tenths % 10}"


def read_budgets(connection: Connection, name: str) -> dict[str, Budget]:
    """The budgets that apply to a month, by tenant."""
    return in_force(_rows(connection), name)


def in_force(budgets: Iterable[Budget], name: str) -> dict[str, Budget]:
    """Of all rows ever recorded, in order of their ids, those that apply to the month."""
    found: dict[str, Budget] = {}
    for budget in budgets:
        held = found.get(budget.tenant)
        if budget.month <= name and (held is None or budget.month >= held.month):
            found[budget.tenant] = budget
    return {tenant: b for tenant, b in sorted(found.items()) if b.amount_micros is not None}


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
    month(name)
    micros = None if amount is None else _micros(amount)
    with ledger.write() as connection:
        next_batch(connection)  # two at once would each see the other's absence
        if micros is not None and not (known or _has_usage(connection, tenant)):
            raise BudgetError("tenant", f"There is no tenant {tenant[:80]!r}, and no usage of one.")
        held = read_budgets(connection, name).get(tenant)
        currency = next((price.currency for price in read_prices(connection)), "")
        if micros is not None and not currency:
            raise BudgetError("amount", "There is no price yet, and so no currency: add a price first.")
        wanted = (micros, warn_percent)
        same = wanted == (held.amount_micros, held.warn_percent) if held else micros is None
        if same:
            return held, False
        values = {
            "tenant": tenant, "month": name, "amount_micros": micros, "currency": currency,
            "warn_percent": warn_percent, "recorded_at": now,
        }  # fmt: skip  # a row
        made = connection.execute(insert(table).values(values).returning(table)).mappings().one()
        budget = Budget(**made)
        action = "cost_budget.remove" if micros is None else "cost_budget.set"
        record(connection, actor, action, tenant or "installation", budget.document(), now)
        return (None if micros is None else budget), True


def _has_usage(connection: Connection, tenant: str) -> bool:
    query = select(rollups.c.id).where(rollups.c.tenant == tenant).limit(1)
    return connection.execute(query).first() is not None


def _rows(connection: Connection) -> list[Budget]:
    return [Budget(**row) for row in connection.execute(select(table).order_by(table.c.id)).mappings()]


def _micros(text: str) -> int:
    try:
        amount = Decimal(text)
    except InvalidOperation:
        amount = Decimal(-1)
    if not (amount.is_finite() and 0 <= amount <= _LARGEST) or amount != round(amount, 6):
        raise BudgetError(
            "amount", f"amount: {text[:40]!r} is not a decimal of at most six places, 0 to {_LARGEST}."
        )
    return int(amount.scaleb(6))

"""What is ahead: forecasts, budgets, anomalies and alerts."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from gateway.schemas.base import Answer, StrictBody
from gateway.schemas.finance import Complete, Money, PriceSeries
from gateway.schemas.options import Option
from gateway.units import percent, shown, shown_money

Method = Literal["weekday", "daily", "none", "actual"]
BudgetStatus = Literal["within", "warning", "forecast_over", "reached"]
PricedBy = Annotated[
    Literal["cost", "rate_card"],
    Field(
        description="In which terms amounts are: `cost`, or what the tenant's `rate_card` charges, before "
        "allowance, tiers, discounts and minimum, and with batches at the prices of other requests."
    ),
]


class NewBudget(StrictBody):
    tenant: Annotated[str | None, Option()] = Field(
        None,
        min_length=1,
        max_length=200,
        description="Default: the whole installation.",
        examples=["acme"],
    )
    amount: Annotated[str | None, Option("Amount per month", kind="decimal", unset="no budget")] = Field(
        max_length=40,
        description="Per UTC month, in the currency of the prices; a decimal. Null removes the budget.",
        examples=["1500.00"],
    )
    first_month: Annotated[str | None, Option(flag="--from")] = Field(
        None, max_length=10, description="Default: this month.", examples=["2026-11"]
    )
    warn_percent: Annotated[int, Option()] = Field(
        80, ge=1, le=100, description="Warn when this percentage of the amount is used."
    )


class Estimate(Answer):
    """A month's cost or charge so far, and at its end."""

    priced_by: PricedBy
    so_far: Money
    expected: Money | None = Field(description="At the month's end; null: too little is known.")
    low: Money | None
    high: Money | None
    days_known: int
    method: Method = Field(
        description="`weekday` or `daily` means (less than two weeks are known), `none` (too little is "
        "known), or `actual` (the month is over)."
    )
    budget: Money | None
    status: BudgetStatus | None = Field(
        description="`warning`: `warn_percent` is used; `forecast_over`: the forecast exceeds the amount."
    )
    used_percent: str | None


class TenantEstimate(Estimate):
    tenant: str


class Forecast(Complete):
    month: str
    currency: str | None
    as_of: str
    complete_days: int
    days: int
    confidence_percent: int
    policy: str = Field(description="How unused time is shared; `none`: tenants' costs exclude it.")
    missing_prices: tuple[PriceSeries | str, ...]
    installation: Estimate | None = Field(
        None, description="What everything costs; left out if only tenants are asked for."
    )
    rows: tuple[TenantEstimate, ...]


class Anomaly(Answer):
    kind: Literal["tenant", "adapter", "engine"]
    subject: str
    tenant: str | None
    day: str
    since: str
    priced_by: PricedBy
    cost: Money
    habit: Money | None = Field(description="The median of the two weeks before.")
    ratio: str = Field(description="Cost by habit, or of an engine the idle part.")


class Anomalies(Complete):
    currency: str | None
    as_of: str
    factor: str
    idle_percent: str
    data: tuple[Anomaly, ...]


class Alert(Answer):
    """As the webhook gets it."""

    id: str
    type: str
    raised_at: str
    tenant: str | None
    data: dict[str, Any] = Field(description="The budget, credits, payment or anomaly that it is about.")
    delivered_at: str | None = Field(description="null until the webhook has accepted it.")

    @property
    def about(self) -> str:
        """For people."""
        data, currency = self.data, self.data["currency"]

        def money(name: str) -> str:
            return shown_money(data[name], currency)

        if data.get("event") == "":
            return f"The event of a payment cannot be read: {data['reason']}"
        if "event" in data:
            payment = f"payment {data['event']} of {data['amount']} {currency} for {data['tenant']}"
            return f"{payment} is not granted: {data['reason']}"
        if "available" in data:
            return f"{data['month']}: {money('drawn')} of {money('available')} {currency} of credits drawn"
        if "budget" in data:
            end = "" if data["expected"] is None else f", {money('expected')} expected"
            used = "charged" if data.get("priced_by") == "rate_card" else "used"
            return f"{data['month']}: {money('so_far')} of {money('budget')} {currency} {used}{end}"
        excess = excess_text(data["kind"], data["ratio"], data.get("priced_by", "cost"))
        return f"{data['kind']} {data['subject']}: {money('cost')} {currency} on {data['day']}, {excess}"


def excess_text(kind: str, ratio: str, priced_by: str) -> str:
    """How far an anomaly is beyond what is usual, for people."""
    if kind == "engine":
        return f"{percent(ratio)} idle"
    return f"{shown(ratio, 1)} times" + (", by rate card" if priced_by == "rate_card" else "")


class Alerts(Answer):
    data: tuple[Alert, ...]
    note: str | None = Field(None, description="For tenants: why some are left out.")


class Budget(Answer):
    tenant: str | None = Field(description="null: the whole installation.")
    first_month: str = Field(examples=["2026-11"])
    amount: Money | None = Field(description="Per UTC month; null: none.")
    currency: str | None = None
    warn_percent: int | None = None
    recorded_at: str | None = None


class ChangedBudget(Budget):
    changed: bool = Field(description="false: it was so before.")


class BudgetState(Estimate):
    tenant: str | None = Field(description="null: the whole installation.")
    first_month: str = Field(examples=["2026-11"])
    amount: Money
    currency: str
    warn_percent: int
    recorded_at: str


class Budgets(Complete):
    month: str
    currency: str | None
    as_of: str
    missing_prices: tuple[PriceSeries | str, ...]
    data: tuple[BudgetState, ...]

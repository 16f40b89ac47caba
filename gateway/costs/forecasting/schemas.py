"""What is ahead: forecasts, budgets, anomalies and alerts."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from gateway.schemas.base import Answer, StrictBody
from gateway.schemas.finance import Complete, Money, PriceSeries

Method = Literal["weekday", "daily", "none", "actual"]
BudgetStatus = Literal["within", "warning", "forecast_over", "reached"]


class NewBudget(StrictBody):
    tenant: Annotated[
        str | None,
        Field(min_length=1, max_length=200, description="Null: the whole installation.", examples=["acme"]),
    ] = None
    amount: Annotated[
        str | None,
        Field(
            max_length=40,
            description="Per UTC month, in the currency of the prices; a decimal. Null removes the budget.",
            examples=["1500.00"],
        ),
    ]
    first: Annotated[
        str | None,
        Field(
            alias="from", max_length=10, description="First month. Default: this month.", examples=["2026-11"]
        ),
    ] = None
    warn_percent: Annotated[int, Field(ge=1, le=100, description="Warn at this part of the amount.")] = 80


class Estimate(Answer):
    """A month's cost so far, and at its end."""

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
    whole: Estimate | None = Field(
        None, description="Of the installation; left out if only tenants are asked for."
    )
    rows: tuple[TenantEstimate, ...]
    priced_by: Literal["cost", "rate_card"] | None = Field(None, description="For tenants.")
    note: str | None = Field(None, description="For tenants: why a budget is not shown.")


class Anomaly(Answer):
    kind: Literal["tenant", "adapter", "engine"]
    subject: str
    tenant: str | None
    day: str
    since: str
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
    at: str
    tenant: str | None
    data: dict[str, Any] = Field(description="The budget or the anomaly that it is about.")
    delivered_at: str | None = Field(description="null until the webhook has accepted it.")


class Alerts(Answer):
    data: tuple[Alert, ...]
    note: str | None = Field(None, description="For tenants: why some are left out.")


class Budget(Answer):
    tenant: str | None = Field(description="null: the whole installation.")
    first: str = Field(alias="from", description="The first month, `2026-11`.")
    amount: Money | None = Field(description="Per UTC month; null: none.")
    currency: str | None = None
    warn_percent: int | None = None
    recorded_at: str | None = None


class ChangedBudget(Budget):
    changed: bool = Field(description="false: it was so before.")


class BudgetState(Estimate):
    tenant: str | None = Field(description="null: the whole installation.")
    first: str = Field(alias="from", description="The first month, `2026-11`.")
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
    priced_by: Literal["cost", "rate_card"] | None = Field(None, description="For tenants.")
    note: str | None = Field(None, description="For tenants: why none is shown.")

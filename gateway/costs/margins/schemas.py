"""What each customer pays, less what it cost. Not for customers."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from gateway.schemas.base import Answer
from gateway.schemas.finance import Complete, Money


class Margin(Answer):
    """Costs are null where a price of GPU time is missing."""

    cost: Money | None
    margin: Money | None
    margin_percent: str | None = Field(description="Of the price; null without one.")


class TenantMargin(Margin):
    tenant: str
    rate_card: str | None = Field(description="null: it is charged the cost.")
    price: Money
    amount_cents: int = Field(description="The price, rounded as on its statement.")
    cost_excluding_unused_time: Money | None
    cost_of_unused_time: Money | None
    cost_cents: int | None
    unused_time_cents: int | None


class AdapterMargin(Margin):
    tenant: str
    adapter: str | None = Field(description="Empty: the base model; null: what belongs to no adapter.")
    price: Money


class NotCharged(Answer):
    retry_waste: Money | None
    unallocated: Money | None = Field(description="Unused time that no tenant pays for.")


class NotChargedCents(Answer):
    retry_waste: int | None
    unallocated: int | None


class MarginTotals(Margin):
    price: Money
    price_cents: int
    cost_cents: int | None


class MarginReport(Complete):
    month: str
    state: Literal["open", "closing", "closed"]
    currency: str | None
    policy: str
    missing_prices: tuple[str, ...]
    rows: tuple[TenantMargin, ...]
    not_charged: NotCharged
    not_charged_cents: NotChargedCents
    totals: MarginTotals
    adapters: tuple[AdapterMargin, ...] | None = Field(None, description="With `by=adapter`.")

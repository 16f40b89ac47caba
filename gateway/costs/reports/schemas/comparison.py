"""A month's work priced on other GPU types."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from gateway.schemas.base import Answer
from gateway.schemas.finance import Complete, Hours, Money


class GpuUse(Answer):
    gpu_type: str
    provisioned_gpu_hours: Hours
    busy_gpu_hours: Hours
    utilization: str | None


class ActualUse(Answer):
    cost: Money | None = Field(description="null: prices are missing.")
    priced_cost: Money | None = Field(None, description="Of what has a price; only if prices are missing.")
    missing_prices: tuple[str, ...]
    used: tuple[GpuUse, ...]
    left_out: tuple[str, ...] = Field(description="GPU types whose speed is unknown.")


class Work(Answer):
    """In hours of the reference GPU."""

    busy_reference_hours: Hours
    provisioned_reference_hours: Hours
    utilization: str | None
    uncached_tokens: int
    cached_tokens: int
    output_tokens: int


class Offer(Answer):
    """The work on one GPU of the price book."""

    gpu_type: str
    region: str
    purchase: str
    rate_per_gpu_hour: Money
    discount: str | None = Field(description="To the on-demand rate, 0 to 1.")
    speedup: str | None = Field(description="Relative to the reference; null: unknown.")
    speedup_is: Literal["reference", "measured", "stated", "unknown"]
    speedup_source: str
    effective_rate: Money | None = Field(description="For an hour's work of the reference.")
    busy_gpu_hours: Hours | None
    busy_cost: Money | None = Field(description="Without idle time.")
    loaded_gpu_hours: Hours | None
    loaded_cost: Money | None = Field(description="With the month's share of idle time.")
    gpus: int | None = Field(description="Whole GPUs that are needed.")
    gpus_cost: Money | None = Field(description="Of these for the whole month.")
    cheapest: bool


class Comparison(Complete):
    month: str
    currency: str | None
    reference: str | None = Field(description="The GPU type that speeds are relative to.")
    hours: Hours = Field(description="Of the month.")
    actual: ActualUse
    work: Work
    rows: tuple[Offer, ...] = Field(description="Cheapest first.")

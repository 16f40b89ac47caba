"""The cost report: tokens, GPU time and cost by tenant, adapter, GPU type and other dimensions."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from gateway.schemas.base import Answer
from gateway.schemas.finance import Complete, End, Hours, Money, PriceSeries, Start


class Figures(Answer):
    """Unused time has no counts; a tenant's key sees no GPU time."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    gpu_seconds: float | None = None
    gpu_hours: Hours | None = None
    nano_gpu_hours: int | None = None
    cost: Money | None = Field(description="null: a price is missing.")
    amount_cents: int | None = Field(None, description="In months as posted: as rounded on the statements.")
    priced_cost: Money | None = Field(None, description="Of what has a price, if something has none.")
    unpriced_gpu_hours: Hours | None = None
    allocated_nano_gpu_hours: int | None = Field(None, description="Unused time, by the policy.")
    allocated_cost: Money | None = None
    allocated_amount_cents: int | None = None

    @property
    def allocates(self) -> bool:
        """Whether unused time is divided among tenants."""
        return "allocated_cost" in self.model_fields_set


class CostRow(Figures):
    """Has the dimensions that were asked for."""

    tenant: str | None = None
    adapter: str | None = Field(None, description="Empty: the base model, or a share of unused time.")
    version: str | None = None
    base_model: str | None = None
    gpu_type: str | None = None
    engine: str | None = None
    region: str | None = None
    purchase: str | None = None
    hour: str | None = Field(None, description="UTC.")
    day: str | None = Field(None, description="In the report's timezone.")
    key: str | None = None
    end_user: str | None = None
    tag: str | None = None
    cost_centre: str | None = None
    service_tier: str | None = None

    def dimension(self, name: str) -> str:
        return getattr(self, name) or ""


class CorrectionRow(CostRow):
    month: str = Field(description="That it corrects.")
    bucket: str


class CostPart(Answer):
    rows: tuple[CostRow, ...]
    totals: Figures


class Corrections(Answer):
    rows: tuple[CorrectionRow, ...]
    totals: Figures


class Utilization(Answer):
    gpu_type: str
    provisioned_gpu_hours: Hours
    busy_gpu_hours: Hours
    utilization: float | None = Field(description="0 to 1.")
    idleness_gpu_hours: Hours
    idleness_cost: Money | None


class WithoutEngine(Answer):
    """A kind of engine of which none ran for an hour or longer, between the first and the last that did."""

    base_model: str
    gpu_type: str
    gpu_count: int
    region: str
    purchase: str
    gpu_hours: Hours = Field(description="That one engine would have run. Part of no sum.")
    cost: Money | None = Field(description="What it would have cost at list price; null: a price is missing.")


class TokenPrices(Answer):
    """Per million; null: unknown."""

    input: Money | None
    cached: Money | None
    output: Money | None


class UnitPrices(Answer):
    """What a million tokens cost."""

    gpu_type: str
    region: str
    purchase: str
    saturated: TokenPrices = Field(description="By an engine that is always busy.")
    busy: TokenPrices = Field(description="Excluding unused time.")
    loaded: TokenPrices = Field(description="Including unused time.")


class InvoiceLine(Answer):
    kind: str
    reason: str
    gpu_hours: Hours
    cost: Money
    amount_cents: int | None = None


class InvoicedCost(Answer):
    """What leads from the cost at list price to what the month costs."""

    state: Literal["trued_up", "expected"]
    recorded_at: str | None = Field(description="When it was trued up; null: it is only expected.")
    lines: tuple[InvoiceLine, ...]
    cost: Money
    amount_cents: int | None = None


class AppliedRate(Answer):
    currency: str
    rate: str
    valid_from: str
    source: str
    changed_within: bool = Field(description="The rate changed within the period.")


class LocalPeriod(Answer):
    timezone: str
    start: Start
    to: End


class CalibrationUsed(Answer):
    id: int
    gpu_type: str
    base_model: str
    engine_version: str
    valid_from: str


class OmittedHour(Answer):
    """An engine-hour that is set aside, and in none of the figures."""

    hour: str
    gpu_type: str
    engine: str | None = Field(None, description="For staff.")
    gpu_count: int | None = None
    since: str | None = None
    reason: str | None = Field(None, description="For staff, without `tenant`.")


class LaterCorrections(Figures):
    month: str = Field(description="To which they are posted.")


class CostReport(Complete):
    """`rows` hold delivered usage. Retry waste, headroom, start-up, idle time and corrections are separate;
    together with the rows they sum to the `whole`."""

    currency: str | None
    start: Start
    to: End
    local: LocalPeriod | None = Field(None, description="The same, in the timezone that was asked for.")
    by: tuple[str, ...]
    basis: Literal["posted", "as known now"] = Field(
        description="A whole month of UTC shows what is posted to it; any other time range, and every one in "
        "a timezone, its hours as known now."
    )
    state: Literal["open", "closing", "closed"] | None
    policy: str = Field(description="How unused GPU time is allocated.")
    shares: dict[str, int] | None = None
    own_policies: dict[str, str] | None = None
    weights: str = Field(description="`calibrated`, `partly calibrated` or `uncalibrated`.")
    calibrations: tuple[CalibrationUsed, ...] = ()
    missing_prices: tuple[PriceSeries, ...]
    set_aside: tuple[OmittedHour, ...] = ()
    rows: tuple[CostRow, ...]
    next: str | None = Field(description="For `after`; null on the last page.")
    totals: Figures
    rejected: int = Field(description="Requests that reached no engine.")
    retry_waste: CostPart
    corrections: Corrections
    corrected_later: tuple[LaterCorrections, ...] = Field(
        (), description="Of a closed month: what later months correct of it. Not part of its figures."
    )
    headroom: CostPart | None = None
    startup: CostPart | None = None
    idle: CostPart | None = None
    unallocated: Figures | None = None
    provisioned: Figures | None = None
    utilization: tuple[Utilization, ...] = ()
    without_engine: tuple[WithoutEngine, ...] = Field((), description="What scaling to zero saved.")
    unit_prices: tuple[UnitPrices, ...] = ()
    invoice: InvoicedCost | None = Field(None, description="Of a month as posted.")
    billed_cents: int | None = None
    exchange_rate: AppliedRate | None = None
    priced_by: Literal["cost", "rate_card"] | None = Field(
        None,
        description="For a tenant's key. `rate_card`: `cost` is the price of the tokens, of batches as of "
        "other requests.",
    )
    key_labels: dict[str, str] = Field({}, description="By key: the names that their owners gave them.")
    names_reused: dict[str, str] = Field(
        {},
        description="Tenants whose names were earlier tenants' within the period, and since when they are "
        "theirs: ask for the times before and after to tell them apart.",
    )

"""Rate cards, their assignments, and invoices: what customers pay."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from adapters.model import Task
from gateway.costs.selling.card_lines import Kind
from gateway.schemas.base import Answer, StrictBody
from gateway.schemas.finance import Currency, Money
from gateway.schemas.options import Option

_Decimal = Annotated[str, Field(max_length=40, examples=["0.60"])]
_Count = Annotated[int, Field(ge=0, le=10**15)]
_Text = r"^[^\x00-\x1f\x7f]*$"


class NewTier(StrictBody):
    """Another price from a monthly quantity on."""

    kind: Kind = Field(description="What it prices.")
    above: int = Field(
        gt=0,
        le=10**15,
        description="Tokens or requests of the month, without the free ones, after which it begins.",
    )
    price: _Decimal = Field(description="Per million tokens, or per request.")


class NewPrices(StrictBody):
    """What a rate card and each of its lines have."""

    input_per_million: Annotated[_Decimal, Option(flag="--input", kind="decimal")] = Field(
        description="Price per million input tokens that were not cached."
    )
    cached_per_million: Annotated[_Decimal | None, Option(flag="--cached", kind="decimal")] = Field(
        None, description="Price per million cached input tokens. Default: the price of input tokens."
    )
    output_per_million: Annotated[_Decimal, Option(flag="--output", kind="decimal")] = Field(
        description="Price per million output tokens."
    )
    reasoning_per_million: Annotated[_Decimal | None, Option(flag="--reasoning", kind="decimal")] = Field(
        None, description="Price per million reasoning tokens. Default: the price of output tokens."
    )
    per_request: Annotated[_Decimal, Option(kind="decimal")] = Field(
        "0", description="Price of a delivered request, besides its tokens."
    )
    free_input_tokens: Annotated[_Count, Option(flag="--free-input")] = Field(
        0, description="Input tokens per month that are free."
    )
    free_cached_tokens: Annotated[_Count, Option(flag="--free-cached")] = Field(
        0, description="Cached input tokens per month that are free."
    )
    free_output_tokens: Annotated[_Count, Option(flag="--free-output")] = Field(
        0, description="Output tokens per month that are free."
    )
    free_requests: Annotated[_Count, Option()] = Field(0, description="Requests per month that are free.")
    tiers: tuple[NewTier, ...] = Field((), max_length=50, description="Other prices for larger quantities.")
    tier_mode: Literal["graduated", "volume"] = Field(
        "graduated",
        description="`graduated`: a tier prices only what is above it. `volume`: the tier that the month "
        "reaches prices all of it.",
    )


class NewCardLine(NewPrices):
    """Prices for some of the usage. The most specific line that fits prices a request: adapter, then base
    model, task, GPU type and service tier; without one, the card itself."""

    name: str = Field(max_length=63, description="Part of its SKUs.", examples=["large"])
    adapter: str | None = Field(
        None, max_length=200, description="Full name.", examples=["acme/support"], pattern=_Text
    )
    base_model: str | None = Field(
        None, max_length=200, pattern=_Text, description="Also of requests for its adapters."
    )
    task: Task | None = Field(
        None, description="What the endpoint asks of the engine: to generate text, `embed` or `score` it."
    )
    gpu_type: str | None = Field(
        None, max_length=100, pattern=_Text, description="Of the engine that answered."
    )
    service_tier: Literal["batch"] | None = Field(
        None, description="`batch`: lines of batches. `batch_percent` does not apply to these prices."
    )
    residency_per_adapter_hour: _Decimal | None = Field(
        None, description="Only with `adapter`. Default: the card's."
    )
    per_gpu_hour: _Decimal | None = Field(
        None, description="Only with `gpu_type` and nothing else. Default: the card's."
    )


class NewRateCard(NewPrices):
    name: str = Field(max_length=63, description="The same for all its versions.", examples=["standard"])
    residency_per_adapter_hour: Annotated[_Decimal, Option(flag="--residency", kind="decimal")] = Field(
        "0", description="Price of an hour in which an adapter of the tenant is resident on an engine."
    )
    per_gpu_hour: Annotated[_Decimal, Option(kind="decimal")] = Field(
        "0", description="Price of a GPU-hour of engines that are dedicated to the tenant."
    )
    batch_percent: Annotated[int, Option(flag="--batch")] = Field(
        100, ge=0, le=100, description="What batches' tokens cost, in percent of the others'."
    )
    monthly_minimum: Annotated[_Decimal, Option(flag="--minimum", kind="decimal")] = Field(
        "0", description="Minimum charge per month."
    )
    discount_percent: Annotated[int, Option(flag="--discount")] = Field(
        0, ge=0, le=100, description="Off everything but the minimum, which is compared with what is left."
    )
    discount_until: Annotated[str | None, Option()] = Field(
        None, max_length=10, description="Last month of the discount, like `2027-03`. Default: no end."
    )
    lines: tuple[NewCardLine, ...] = Field(
        (), max_length=200, description="Other prices than the card's own, for some of the usage."
    )
    currency: Annotated[Currency, Option()] = Field(
        "USD", description="Three-letter code, as the GPU prices'."
    )
    valid_from: Annotated[str | None, Option(flag="--from")] = Field(
        None,
        max_length=10,
        description="First month, like `2026-11`. Default: this month for a card's first version, next "
        "month for a later one.",
    )
    reason: Annotated[str, Option()] = Field(
        "",
        max_length=300,
        pattern=_Text,
        description="Why it replaces other terms from the same month; the earlier ones are kept.",
    )


class NewAssignment(StrictBody):
    tenant: Annotated[
        str | None,
        Field(max_length=100, description="null: every tenant without an assignment of its own."),
    ]
    card: Annotated[str | None, Field(max_length=63, description="null: none; the tenant pays the cost.")]
    valid_from: Annotated[
        str | None, Field(max_length=10, description="First month. Default: this month.")
    ] = None


class NewInvoice(StrictBody):
    month: Annotated[str, Option()] = Field(
        max_length=10, description="A closed month.", examples=["2026-10"]
    )
    tenant: Annotated[str, Option()] = Field(
        min_length=1, max_length=100, description="Whom the statement is for."
    )
    number: Annotated[str, Option()] = Field(
        min_length=1, max_length=60, pattern=_Text, description="Of the invoice.", examples=["2026-0117"]
    )
    tax_percent: Annotated[_Decimal, Option(kind="decimal")] = Field(
        "0", description="Tax on the amount, in percent."
    )
    tax_name: Annotated[str, Option()] = Field(
        "", max_length=40, pattern=_Text, description="Name of the tax.", examples=["VAT"]
    )
    due: Annotated[str | None, Option()] = Field(
        None, max_length=10, description="Due date, like `2026-11-30`."
    )
    currency: Annotated[Currency | None, Option()] = Field(
        None,
        description="Convert at the exchange rate of the month's end. Default: the price book's, or that of "
        "the invoice to correct.",
    )
    corrects: Annotated[str, Option()] = Field(
        "",
        max_length=60,
        description="Number of the invoice that this one replaces, or takes something off.",
    )
    reason: Annotated[str, Option()] = Field(
        "", max_length=300, pattern=_Text, description="Why it is corrected: shown to the customer."
    )
    credit: Annotated[_Decimal | None, Option(kind="decimal")] = Field(
        None,
        description="Issue a credit note instead: the amount to take off, before tax and in the invoice's "
        "currency. It has the invoice's tax.",
    )


class Tier(Answer):
    kind: Kind
    above: int
    price: Money


class _Prices(Answer):
    input_per_million: Money
    cached_per_million: Money
    output_per_million: Money
    free_input_tokens: int
    free_cached_tokens: int
    free_output_tokens: int
    reasoning_per_million: Money | None = Field(None, description="null: the price of output tokens.")
    per_request: Money = "0.00"
    free_requests: int = 0
    tiers: tuple[Tier, ...] = ()
    tier_mode: Literal["graduated", "volume"] = "graduated"


class CardLine(_Prices):
    name: str
    adapter: str | None
    base_model: str | None
    task: Task | None = None
    gpu_type: str | None
    service_tier: str | None
    residency_per_adapter_hour: Money | None = Field(description="null: the card's.")
    per_gpu_hour: Money | None = Field(None, description="null: the card's.")


class RateCard(_Prices):
    """One version of a rate card. Versions are never edited."""

    name: str
    valid_from: str = Field(description="First month.")
    currency: str
    residency_per_adapter_hour: Money
    per_gpu_hour: Money = Field("0.00", description="Of engines that are dedicated to the tenant.")
    batch_percent: int
    monthly_minimum: Money
    discount_percent: int = 0
    discount_until: str | None = Field(None, description="Last month of the discount; null: no end.")
    lines: tuple[CardLine, ...] = Field((), description="The most specific first.")
    reason: str | None
    recorded_at: str


class Assignment(Answer):
    tenant: str | None = Field(description="null: every tenant without an assignment of its own.")
    card: str | None = Field(description="null: none; the tenant pays the cost, unless `ended`.")
    ended: bool = Field(
        False, description="The tenant was removed. One of the same name starts without an assignment."
    )
    valid_from: str = Field(description="First month.")
    recorded_at: str


class RateCards(Answer):
    """In the order in which they were recorded; of two for the same month, the later counts."""

    data: tuple[RateCard, ...]
    assignments: tuple[Assignment, ...]
    month: str | None = Field(None, description="The present one.")


class Invoice(Answer):
    month: str
    tenant: str
    number: str
    kind: Literal["invoice", "corrected_invoice", "credit_note"]
    corrects: str | None = Field(description="Number of the invoice that it replaces, or is credited on.")
    reason: str | None
    currency: str | None
    amount_cents: int | None = Field(
        description="Before tax; below zero on a credit note. null: an earlier version of Florin recorded it."
    )
    tax_cents: int | None
    total_cents: int | None
    tax_name: str | None
    tax_percent: str
    due: str | None
    recorded_at: str

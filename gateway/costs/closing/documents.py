"""What a settlement says, typed: each tenant's statement with its lines and charges, and the totals. Closed
months store these as documents that their hash covers, so a document that was read is written back byte by
byte, without keys that it did not have.

Amounts are integers here, and exact decimals in the documents."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer

from gateway.costs.prices.price import Series
from gateway.units import (
    CENT,
    Amount,
    Cents,
    Micros,
    MilliHours,
    NanoHours,
    amount_text,
    hours_text,
    micros_text,
    total,
    units_of,
)


def _decimal(places: int) -> BeforeValidator:
    return BeforeValidator(lambda value: units_of(value, places) if isinstance(value, str) else value)


AmountText = Annotated[Amount, _decimal(15), PlainSerializer(amount_text)]
MicrosText = Annotated[Micros, _decimal(6), PlainSerializer(micros_text)]
HoursText = Annotated[MilliHours, _decimal(3), PlainSerializer(hours_text)]


class Document(BaseModel):
    model_config = ConfigDict(frozen=True)

    def document(self) -> dict[str, Any]:
        return self.model_dump(mode="json", exclude_unset=True)


class Counts(Document):
    requests: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int


class StatementLine(Counts):
    """Everything of one kind, adapter, GPU type, region and purchase model."""

    kind: str
    """A bucket of the month's time, or `allocated`: a share of unused time."""
    adapter: str
    gpu_type: str
    region: str
    purchase: str
    correction: bool
    corrects: str = ""
    """For a correction of kind `allocated`: the month that it corrects."""
    nano_gpu_hours: NanoHours
    cost: AmountText
    amount_cents: Cents | None
    """None: not billed."""

    @property
    def series(self) -> Series:
        return self.gpu_type, self.region, self.purchase


class _Charge(Document):
    exact: AmountText
    amount_cents: Cents


class _Priced(_Charge):
    sku: str
    price: str
    """`standard/2026-11/input`"""
    line: str = ""
    """A line of the rate card; left out: its default one."""


class TierPrice(Document):
    above: int
    """What is charged in the month before it begins."""
    unit_price: MicrosText


class _Tiered(_Priced):
    tiers: tuple[TierPrice, ...] = ()
    tier_mode: Literal["graduated", "volume"] = "graduated"


class TokenCharge(_Tiered):
    kind: Literal["input", "cached", "output", "reasoning"]
    tokens: int
    free_tokens: int
    per_million: MicrosText


class RequestCharge(_Tiered):
    kind: Literal["requests"]
    requests: int
    free_requests: int
    per_request: MicrosText


class ResidentAdapter(Document):
    adapter: str
    hours: HoursText


class ResidencyCharge(_Priced):
    kind: Literal["residency"]
    hours: HoursText
    per_hour: MicrosText
    adapters: tuple[ResidentAdapter, ...]


class DedicatedGpus(Document):
    gpu_type: str
    hours: HoursText


class DedicatedCharge(_Priced):
    """GPU-hours of engines that are dedicated to the tenant."""

    kind: Literal["dedicated"]
    hours: HoursText
    per_gpu_hour: MicrosText
    gpus: tuple[DedicatedGpus, ...]


class _TokenCounts(Document):
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0


class BatchDiscount(_TokenCounts, _Priced):
    """What batches of one line of the card cost less."""

    kind: Literal["batch_discount"]
    batch_percent: int
    reasoning_tokens: int = 0
    """If the line has a price for them: then they are not among the output tokens."""


class DiscountCharge(_Priced):
    kind: Literal["discount"]
    percent: int
    until: str | None
    """The last month."""


class MinimumCharge(_Priced):
    kind: Literal["minimum"]
    monthly_minimum: MicrosText


class CorrectionCharge(_TokenCounts, _Charge):
    kind: Literal["correction"]
    month: str
    reason: str
    card: str | None = None


class CostCharge(_Charge):
    """The cost of a month without a rate card."""

    kind: Literal["cost"]


Charge = Annotated[
    TokenCharge
    | RequestCharge
    | ResidencyCharge
    | DedicatedCharge
    | BatchDiscount
    | DiscountCharge
    | MinimumCharge
    | CorrectionCharge
    | CostCharge,
    Field(discriminator="kind"),
]


class UsedLine(Document):
    """A line of a rate card: for which usage it is. What it does not name may be anything."""

    line: str
    adapter: str = ""
    base_model: str = ""
    task: str = ""
    gpu_type: str = ""
    service_tier: str = ""


class Charges(Document):
    """What a tenant pays for a month by its rate card."""

    card: str | None
    """None: it had one only in corrected months."""
    card_from: str | None
    exact: AmountText
    amount_cents: Cents
    lines: tuple[Charge, ...]
    card_lines: tuple[UsedLine, ...] = ()
    """Those by which the month is charged, apart from the default one. The first that fits prices a request.
    Left out: there are none."""


class ManualCharge(Document):
    """A fee, or a single line that somebody added. It is in whole cents."""

    kind: Literal["fee", "charge", "credit", "refund"]
    id: int
    reason: str
    adapter: str = ""
    """Whose fee it is; empty: the tenant's."""
    days: int = 0
    """How many are charged, if a fee is for a part of the month."""
    days_in_month: int = 0
    amount_cents: Cents


class CreditDraw(Document):
    """What the month draws of a grant."""

    grant: int
    reason: str
    cents: Cents


class Credits(Document):
    """A month of prepaid credits: opening and granted are what drawn, expired and closing sum to."""

    opening_cents: Cents
    granted_cents: Cents
    """Grants that begin with the month."""
    drawn_cents: Cents
    expired_cents: Cents
    """What is left of grants that end with the month."""
    closing_cents: Cents
    draws: tuple[CreditDraw, ...]


class TenantStatement(Document):
    nano_gpu_hours: NanoHours
    allocated_nano_gpu_hours: NanoHours
    cost: AmountText
    amount_cents: Cents
    lines: tuple[StatementLine, ...]
    charges: Charges | None = None
    """None: the tenant pays the cost."""
    manual: tuple[ManualCharge, ...] = ()
    """Beside it."""
    credits: Credits | None = None
    """Prepaid; None: the tenant has none."""

    @property
    def price(self) -> Amount:
        """What the tenant pays, also in advance."""
        used = self.cost if self.charges is None else self.charges.exact
        return Amount(used + self.manual_cents * CENT)

    @property
    def price_cents(self) -> Cents:
        used = self.amount_cents if self.charges is None else self.charges.amount_cents
        return Cents(used + self.manual_cents)

    @property
    def due_cents(self) -> Cents:
        """What prepaid credits do not cover."""
        return Cents(self.price_cents - (self.credits.drawn_cents if self.credits else 0))

    @property
    def manual_cents(self) -> Cents:
        return total(line.amount_cents for line in self.manual)

    @property
    def card(self) -> str | None:
        return None if self.charges is None else self.charges.card


class BucketTotal(Document):
    nano_gpu_hours: NanoHours
    cost: AmountText


class Part(Document):
    cost: AmountText
    amount_cents: Cents


class Totals(Counts):
    """The sums of all tenants, and what the operator bears: `billed`, `retry_waste` and `unallocated` make up
    the cost."""

    nano_gpu_hours: NanoHours
    allocated_nano_gpu_hours: NanoHours
    cost: AmountText
    amount_cents: Cents
    buckets: dict[str, BucketTotal]
    billed: Part
    retry_waste: Part
    unallocated: Part

"""A tenant's statement of a month, as figures. Amounts are in hundredths of the currency."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from gateway.costs.closing.documents import Charges, Credits, ManualCharge
from gateway.costs.selling.schemas import Invoice
from gateway.schemas.base import Answer
from gateway.schemas.finance import Complete, End, Start


class StatementItem(Answer):
    name: str
    requests: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    amount_cents: int


class GpuItem(StatementItem):
    gpu: str | None


class CorrectedItem(GpuItem):
    month: str
    reason: str


class DividedItem(StatementItem):
    label: str | None = Field(None, description="Of a key.")


class StatementDivision(Answer):
    """Who within the tenant used it: the parts sum to the amount."""

    by: str
    rows: tuple[DividedItem, ...]
    unused_time_cents: int
    other_cents: int


class ConvertedFrom(Answer):
    currency: str
    amount_cents: int
    rate: str
    valid_from: str
    source: str


class Statement(Complete):
    statement: str = Field(description="`2026-11/acme`")
    issuer: str
    tenant: str
    month: str
    start: Start
    to: End
    state: Literal["final", "preliminary"]
    dated: str
    currency: str | None
    converted_from: ConvertedFrom | None
    basis: Literal["cost", "rate_card"]
    amount_cents: int
    tax_cents: int
    total_cents: int
    invoice: Invoice | None
    charges: Charges | None = Field(description="By the rate card.")
    manual_lines: tuple[ManualCharge, ...] = Field(
        description="Fees, charges, credits and refunds, beside the charges or the usage."
    )
    credits: Credits | None = Field(
        None,
        description="Prepaid: what is drawn is taken off the amount. Not there: the tenant has none.",
    )
    usage: tuple[GpuItem, ...]
    unused_time_cents: int
    corrections: tuple[CorrectedItem, ...]
    division: StatementDivision | None = Field(None, description="With `by`.")
    attempts_not_charged: int
    seal: str | None = Field(description="Of the closed month.")
    records: int | None
    seal_of_records: str | None


class CreditNote(Invoice):
    """What was taken off an invoice."""

    issuer: str

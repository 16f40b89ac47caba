"""Reconciliation of records with engines' counters and bills; acceptances of differences; true-ups."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Literal

from pydantic import Field

from gateway.costs.set_aside.schemas import HourSetAside
from gateway.schemas.base import Answer, StrictBody
from gateway.schemas.finance import Complete, End, Hours, Money, Start

Verdict = Literal["matched", "identified", "unidentified", "accepted"]
SETTLED = frozenset({"matched", "accepted"})
_Reason = Annotated[str, Field(min_length=3, max_length=500, description="Why; kept in the audit log.")]
_Line = Annotated[str, Field(description="Can be accepted.", examples=["2026-10-8f3b2c91"])]


class AcceptedLines(StrictBody):
    """What is accepted, and why."""

    lines: list[Annotated[str, Field(max_length=32)]] = Field(
        [], max_length=1000, description="As reconciled.", examples=[["2026-10-8f3b2c91"]]
    )
    month: str | None = Field(None, max_length=7, description="`2026-10`; needed with `kind` alone.")
    kind: str | None = Field(
        None, max_length=32, description="All lines of this kind, besides `lines`.", examples=["rounding"]
    )
    reason: _Reason


class WithdrawnLine(StrictBody):
    """Why an acceptance is withdrawn."""

    reason: _Reason


class _Amount(Answer):
    """Tokens, or GPU-hours and their cost."""

    gpu_hours: Hours | None = None
    cost: Money | None = None
    tokens: int | None = None


class LineAcceptance(_Amount):
    by: str = Field(description="Id of the key.")
    recorded_at: str
    reason: str
    current: bool = Field(description="false: the amount changed since, and the acceptance no longer holds.")


class Judged(Answer):
    line: _Line
    verdict: Verdict
    accepted: LineAcceptance | None


class TokenCause(Answer):
    kind: str
    reason: str
    tokens: int
    at_least: int
    at_most: int
    records: int


class TokenCheck(Judged):
    """Tokens that an engine counted while it ran without a restart, and those in records."""

    engine: str
    epoch: str = Field(description="When the engine started.")
    start: Start
    to: End
    token_type: str = Field(description="`input`, `cached` or `output`.")
    engine_tokens: int
    record_tokens: int
    difference: int
    lines: tuple[TokenCause, ...]
    unexplained: int


class Unsampled(Answer):
    """Records without engine counters to compare with."""

    engine: str
    start: Start
    to: End
    records: int
    input: int
    output: int


class TokenSection(Answer):
    checks: tuple[TokenCheck, ...]
    unsampled: tuple[Unsampled, ...]
    note: str | None = Field(description="Why tokens cannot be compared.")


class BillDifference(Answer):
    """What a cause makes of the difference between Florin's figures and the bill."""

    kind: str
    reason: str
    explained: bool
    gpu_hours: Hours
    cost: Money
    hours: int = Field(description="Number of hours in which it occurs.")
    first: str | None
    last: str | None


class BillKind(BillDifference):
    verdict: Verdict
    lines: int
    unaccepted: int


class BillLine(BillDifference, Judged):
    """One that can be accepted."""


class BillFigures(Answer):
    verdict: Verdict
    billed_gpu_hours: Hours
    provisioned_gpu_hours: Hours
    attributed_gpu_hours: Hours = Field(description="To tenants' requests.")
    billed_cost: Money
    own_cost: Money = Field(description="By the price book.")


class BillAccount(BillFigures):
    """An engine and GPU on the bill, or in Florin's figures."""

    engine: str
    gpu_type: str
    region: str
    purchase: str
    billed_rate: str | None = Field(description="Per GPU-hour.")
    own_rate: str | None = Field(description="Per GPU-hour.")
    other_currencies: dict[str, str] = Field(description="Amounts that could not be converted.")
    lines: tuple[BillLine, ...]


class BillRate(Answer):
    currency: str
    target: str
    rate: str
    valid_from: str
    source: str


class BillSection(BillFigures):
    currency: str
    exchange_rates: tuple[BillRate, ...]
    difference_gpu_hours: Hours
    difference_cost: Money
    lines: tuple[BillKind, ...]
    unexplained_gpu_hours: Hours
    unexplained_cost: Money
    unaccepted_gpu_hours: Hours
    unaccepted_cost: Money
    accounts: tuple[BillAccount, ...]


class RecordCounts(Answer):
    usage_source: str
    outcome: str
    records: int
    prompt_tokens: int
    completion_tokens: int


class LedgerCompleteness(Answer):
    imbalances: tuple[str, ...] = Field(description="Engine-hours whose parts do not sum to their time.")
    hours_pending: int = Field(description="Engine-hours still to be rolled up.")
    quarantined: dict[str, int] = Field(description="The month's records that no one dismissed, by reason.")
    delivered_twice: int = Field(description="Requests with two billed attempts.")
    records: tuple[RecordCounts, ...]
    implausible: int
    set_aside: tuple[HourSetAside, ...]


class Reconciliation(Complete):
    month: str
    start: Start
    to: End
    tolerance_percent: str
    tokens: TokenSection
    bill: BillSection | None = Field(description="null: none was imported.")
    completeness: LedgerCompleteness
    unexplained: tuple[str, ...] = Field(
        description="A sentence for what is not accepted beyond the tolerance, and one if there is no bill."
    )
    ok: bool = Field(description="Nothing is unexplained.")


class AcceptedLine(_Amount):
    line: _Line
    kind: str
    engine: str
    reason: str
    verdict: Verdict
    accepted: LineAcceptance | None = None
    explained: bool | None = None
    hours: int | None = None
    first: str | None = None
    last: str | None = None


class AcceptedNow(Answer):
    """The lines as they were before."""

    month: str
    reason: str
    data: tuple[AcceptedLine, ...]


class WithdrawnAcceptance(_Amount):
    line: _Line
    month: str
    reason: str


class AcceptanceEntry(_Amount):
    line: _Line
    accepted: bool = Field(description="false: the acceptance was withdrawn.")
    recorded_at: str
    by: str = Field(description="Id of the key.")
    reason: str


class InvoicedMonth(StrictBody):
    """The invoice that the month's cost becomes."""

    invoice: str | None = Field(
        None,
        pattern=r"^-?\d{1,15}(\.\d{1,2})?$",
        description="Its total, if it is to be checked: the imported lines must sum to it.",
        examples=["3032.88"],
    )
    tolerance: Decimal = Field(
        Decimal("0.1"), ge=0, le=100, decimal_places=9, description="Percentage that need not be accepted."
    )


class TrueUpLine(Answer):
    kind: str
    reason: str
    tenant: None
    gpu_hours: Hours
    cost: Money
    amount_cents: int


class TrueUp(Answer):
    """A month's cost at list price, and what makes it the invoice's. Each line belongs to no tenant."""

    month: str
    currency: str
    sources: tuple[str, ...] = Field(description="SHA-256 of the imported files.")
    exchange_rates: tuple[BillRate, ...] | None = None
    billed: dict[str, str] | None = Field(None, description="By currency, if it was converted.")
    books: Literal["open", "closed"]
    seal: str | None = Field(description="Of the closed month.")
    list_cost: Money
    list_amount_cents: int
    lines: tuple[TrueUpLine, ...]
    invoice_cost: Money
    invoice_amount_cents: int


class RecordedTrueUp(TrueUp):
    recorded_at: str
    by: str = Field(description="Id of the key.")


class TrueUps(Answer):
    month: str
    preview: TrueUp | None = Field(description="What it would be now; null: see `blocked`.")
    blocked: tuple[str, ...]
    recorded: tuple[RecordedTrueUp, ...] = Field(description="Newest first.")
    current: bool = Field(description="The newest has the amounts that it would have now.")

"""Months: their closing, verification and proofs."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from gateway.costs.closing.documents import TenantStatement, Totals
from gateway.costs.policies.schemas import FixedShares, SharesTotal
from gateway.schemas.base import Answer, Json, StrictBody
from gateway.schemas.finance import UsageRecord
from gateway.schemas.options import Option
from gateway.units import NanoHours


class ClosingTerms(StrictBody):
    policy: Annotated[
        Literal["none", "proportional", "even", "fixed"] | None,
        Option(),
        Field(
            description="Who pays for idle time, spare capacity and start-up in this month, for all tenants. "
            "Default: the standing policy."
        ),
    ] = None
    shares: FixedShares = None
    shares_total: SharesTotal = None
    allow_missing_prices: Annotated[
        bool,
        Option(),
        Field(description="Charge nothing for unpriced GPU time; a price added later becomes a correction."),
    ] = False
    force: Annotated[
        bool,
        Option(),
        Field(
            description="Close within an hour of the month's end, although workers may still hold records."
        ),
    ] = False


class ClosingProgress(Answer):
    doing: str
    done: int
    total: int = Field(alias="of")


class ClosingRequest(Answer):
    """The request of the first of two people."""

    requested_by: str
    requested_at: str


class StatementSums(Answer):
    tenant: str
    records: int
    seal: Annotated[str, Field(description="Merkle root over the tenant's records.")]
    nano_gpu_hours: Annotated[NanoHours | None, Field(description="For staff.")] = None
    allocated_nano_gpu_hours: Annotated[NanoHours | None, Field(description="For staff.")] = None
    cost: Annotated[str | None, Field(description="Exact decimal; for staff.")] = None
    amount_cents: Annotated[
        int,
        Field(
            description="For staff: the cost, rounded so that all statements sum to the total. For a tenant: "
            "what it is charged."
        ),
    ]
    charged_cents: Annotated[int | None, Field(description="What the tenant is charged; for staff.")] = None
    rate_card: Annotated[str | None, Field(description="By which it is charged; null: the cost.")] = None
    name_reused_at: Annotated[
        str | None,
        Field(
            description="For staff: when the present tenant was added, if the statement also covers an "
            "earlier tenant of its name. Ask /finance/v1/costs for the times before and after."
        ),
    ] = None


class Month(Answer):
    """A tenant's key sees the state, the seals and its own statement."""

    month: str
    state: Annotated[
        Literal["open", "closing", "closed", "changed"],
        Field(description="`changed`: the ledger's row is not as it was recorded; see `florin cost verify`."),
    ]
    start: Annotated[str, Field(alias="from")]
    to: str
    can_be_closed: bool = False
    closed_at: str | None = None
    closed_by: str | None = None
    policy: str | None = None
    shares: dict[str, int] | None = None
    own: Annotated[dict[str, str] | None, Field(description="Tenants with policies of their own.")] = None
    currency: str | None = None
    records: Annotated[int | None, Field(description="Number of usage records covered.")] = None
    tenants: int | None = None
    seal: Annotated[str | None, Field(description="SHA-256, hexadecimal.")] = None
    previous_seal: str | None = None
    missing_prices: tuple[str, ...] | None = None
    totals: Annotated[Totals | None, Field(description="GPU time and exact cost by bucket.")] = None
    progress: Annotated[ClosingProgress | None, Field(description="Progress of a closing.")] = None
    charged_cents: Annotated[
        int | None, Field(description="What all tenants are charged, by rate card or at cost; for staff.")
    ] = None
    statements: tuple[StatementSums, ...] | None = None
    already: Annotated[bool | None, Field(description="Whether it was closed before.")] = None
    request: Annotated[
        ClosingRequest | None,
        Field(
            description="Another person has to close the month, on the same terms: see two-person approval."
        ),
    ] = None


class ClosedMonth(Month):
    """As staff see it."""

    closed_at: str
    policy: str
    records: int
    seal: str
    previous_seal: str | None
    missing_prices: tuple[str, ...]
    totals: Totals
    statements: tuple[StatementSums, ...]
    already: bool


class PreviewedStatement(TenantStatement):
    tenant: str


class ClosingPreview(Answer):
    """What closing the month now would bill; of a closed month, what it billed."""

    month: str
    state: Literal["open", "closing", "closed"]
    policy: str
    shares: dict[str, int]
    own: Annotated[dict[str, str], Field(description="Tenants with policies of their own.")]
    standing: Annotated[bool, Field(description="By the standing policy, or as closed.")]
    currency: str | None
    missing_prices: tuple[str, ...]
    obstacles: Annotated[
        tuple[str, ...], Field(description="Why the month cannot be closed now, and what to do about it.")
    ]
    unaccepted: Annotated[
        tuple[str, ...],
        Field(
            description="What has not been accepted of the month's bill, or that it has none. Empty where no "
            "bills are imported."
        ),
    ]
    totals: Annotated[
        Totals, Field(description="As of a closed month: billed, retry waste, and what no tenant pays for.")
    ]
    statements: Annotated[
        tuple[PreviewedStatement, ...], Field(description="Each tenant's amount, with its lines.")
    ]


class VerificationCheck(Answer):
    name: str
    ok: Annotated[bool | None, Field(description="null if it could not be checked; see `detail`.")]
    detail: str


class Verification(Answer):
    month: str
    seal: str
    ok: Annotated[bool, Field(description="No check failed.")]
    checks: tuple[VerificationCheck, ...]


class Anchor(Answer):
    """The last entry of the ledger's chain. To be kept elsewhere, and checked later."""

    entries: Annotated[int, Field(description="Its number: how many entries the chain has.")]
    hash: Annotated[str, Field(description="SHA-256, hexadecimal; empty: the chain has no entry yet.")]
    exported_at: str


class ChainVerification(Answer):
    """The books, compared with the chain of what was written to them."""

    entries: int
    hash: Annotated[str, Field(description="Of the last entry.")]
    ok: Annotated[bool, Field(description="No check failed.")]
    checks: tuple[VerificationCheck, ...]


class ProofStep(Answer):
    side: Literal["left", "right"]
    hash: str


class Proof(Answer):
    """To check it, hash the statement, climb the path to `header.tenants_root`, and hash the header to the
    seal; see docs/finance.md. Header and statement keep the names of the fields that were hashed (`root`)."""

    version: int
    month: str
    seal: str
    header: dict[str, Any]
    statement: dict[str, Any]
    path: tuple[ProofStep, ...]


class RecordsAsHashed(Answer):
    """A page of records, to check them against a proof: exactly as they are sent."""

    data: tuple[Json, ...]
    next: str | None


class Records(Answer):
    data: tuple[UsageRecord, ...]
    next: Annotated[str | None, Field(description="For `after`; null on the last page.")]

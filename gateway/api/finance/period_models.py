"""What /finance/v1/periods answers."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field


class ClosingProgress(BaseModel):
    doing: str
    done: int
    of: int


class StatementSums(BaseModel):
    tenant: str
    records: int
    seal: Annotated[str, Field(description="Merkle root over the tenant's records.")]
    nano_gpu_hours: Annotated[int | None, Field(description="For staff.")] = None
    allocated_nano_gpu_hours: Annotated[int | None, Field(description="For staff.")] = None
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


class PeriodModel(BaseModel):
    """A tenant's key sees the state, the seals and its own statement."""

    month: str
    state: Literal["open", "closing", "closed"]
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
    missing_prices: list[str] | None = None
    totals: Annotated[dict[str, Any] | None, Field(description="GPU time and exact cost by bucket.")] = None
    progress: Annotated[ClosingProgress | None, Field(description="Progress of a closing.")] = None
    statements: list[StatementSums] | None = None
    already: Annotated[bool | None, Field(description="Whether it was closed before.")] = None


class ClosingPreview(BaseModel):
    """What closing the month now would bill; of a closed month, what it billed."""

    month: str
    state: Literal["open", "closing", "closed"]
    policy: str
    shares: dict[str, int]
    own: Annotated[dict[str, str], Field(description="Tenants with policies of their own.")]
    standing: Annotated[bool, Field(description="By the standing policy, or as closed.")]
    currency: str | None
    missing_prices: list[str]
    obstacles: Annotated[
        list[str], Field(description="Why the month cannot be closed now, and what to do about it.")
    ]
    unaccepted: Annotated[
        list[str],
        Field(
            description="What has not been accepted of the month's bill, or that it has none. Empty where no "
            "bills are imported."
        ),
    ]
    totals: Annotated[
        dict[str, Any],
        Field(description="As of a closed month: billed, retry waste, and what no tenant pays for."),
    ]
    statements: Annotated[list[dict[str, Any]], Field(description="Each tenant's amount, with its lines.")]


class PolicyInForce(BaseModel):
    """Who pays for unused GPU time in a month. A tenant's key sees its own policy."""

    month: str
    policy: str
    frozen: Annotated[bool, Field(description="The month is closed, so this can no longer change.")]
    shares: dict[str, int] | None = None
    own: Annotated[dict[str, str] | None, Field(description="Tenants with policies of their own.")] = None
    history: Annotated[
        list[dict[str, Any]] | None,
        Field(description="Every policy ever set, oldest first; tenant null: the installation's."),
    ] = None
    changed: Annotated[bool | None, Field(description="Whether it was set just now.")] = None


class Periods(BaseModel):
    data: list[PeriodModel]


class VerificationCheck(BaseModel):
    name: str
    ok: Annotated[bool | None, Field(description="null if it could not be checked; see `detail`.")]
    detail: str


class Verification(BaseModel):
    month: str
    seal: str
    ok: Annotated[bool, Field(description="No check failed.")]
    checks: list[VerificationCheck]


class ProofStep(BaseModel):
    side: Literal["left", "right"]
    hash: str


class Proof(BaseModel):
    """To check it, hash the statement, climb the path to `header.tenants_root`, and hash the header to the
    seal; see docs/finance.md. Header and statement keep the names of the fields that were hashed (`root`)."""

    version: int
    month: str
    seal: str
    header: dict[str, Any]
    statement: dict[str, Any]
    path: list[ProofStep]


class Records(BaseModel):
    data: list[dict[str, Any]]
    next: Annotated[str | None, Field(description="For `after`; null on the last page.")]

"""Request and response models of /finance/v1/periods."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class ClosingTerms(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    policy: Annotated[
        Literal["none", "proportional", "even", "fixed"] | None,
        Field(description="How to allocate idle time, headroom and start-up. Default: none."),
    ] = None
    shares: Annotated[
        dict[str, Annotated[int, Field(ge=0, lt=10**9)]] | None,
        Field(
            description="For policy `fixed`: shares by tenant, in any proportion.", examples=[{"acme": 60}]
        ),
    ] = None
    allow_missing_prices: Annotated[
        bool,
        Field(
            description="Count GPU-time without a price as free; adding the price later makes a correction."
        ),
    ] = False
    force: Annotated[
        bool,
        Field(description="Close even within an hour after the month, when workers may still hold records."),
    ] = False


class ClosingProgress(BaseModel):
    doing: str
    done: int
    of: int


class StatementSums(BaseModel):
    tenant: str
    records: int
    root: Annotated[str, Field(description="Merkle root over the tenant's records.")]
    nano_gpu_hours: int
    allocated_nano_gpu_hours: int
    cost: Annotated[str, Field(description="Exact decimal.")]
    amount_cents: Annotated[int, Field(description="Rounded so that all statements and the rest add up.")]


class PeriodModel(BaseModel):
    """A month. A tenant's key sees its state, its roots, and the tenant's own statement."""

    month: str
    state: Literal["open", "closing", "closed"]
    start: Annotated[str, Field(alias="from")]
    to: str
    can_be_closed: bool = False
    closed_at: str | None = None
    closed_by: str | None = None
    policy: str | None = None
    shares: dict[str, int] | None = None
    currency: str | None = None
    records: Annotated[int | None, Field(description="Number of usage records covered.")] = None
    tenants: int | None = None
    root: Annotated[str | None, Field(description="SHA-256, hexadecimal.")] = None
    previous_root: str | None = None
    missing_prices: list[str] | None = None
    totals: Annotated[dict[str, Any] | None, Field(description="GPU-time and exact cost by bucket.")] = None
    progress: Annotated[ClosingProgress | None, Field(description="Present while closing.")] = None
    statements: list[StatementSums] | None = None
    already: Annotated[bool | None, Field(description="The month had been closed before.")] = None


class Periods(BaseModel):
    data: list[PeriodModel]


class VerificationCheck(BaseModel):
    name: str
    ok: Annotated[bool | None, Field(description="null: undetermined; see `detail`.")]
    detail: str


class Verification(BaseModel):
    month: str
    root: str
    ok: Annotated[bool, Field(description="No check failed.")]
    checks: list[VerificationCheck]


class ProofStep(BaseModel):
    side: Literal["left", "right"]
    hash: str


class Proof(BaseModel):
    """To verify: hash the statement, follow the path to `header.tenants_root`, and hash the header to get
    the root. docs/finance.md explains it."""

    version: int
    month: str
    root: str
    header: dict[str, Any]
    statement: dict[str, Any]
    path: list[ProofStep]


class Records(BaseModel):
    data: list[dict[str, Any]]
    next: Annotated[str | None, Field(description="Pass it as `after`; null on the last page.")]

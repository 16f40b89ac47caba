"""Commitments: GPUs that are paid for whether an engine is up or not."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gateway.schemas.base import Answer, Count, StrictBody
from gateway.schemas.finance import Complete, Currency, End, Hours, Money, Start
from gateway.schemas.options import Option


class NewCommitment(StrictBody):
    gpu_type: Annotated[str, Option()] = Field(
        min_length=1, max_length=63, pattern=r"^[ -~]+$", description="GPU type, as engines are labelled."
    )
    gpus: Annotated[Count, Option()] = Field(description="Number of GPUs that are paid for.", examples=[8])
    valid_from: Annotated[str, Option(flag="--from")] = Field(
        max_length=40, description="Start of the term, ISO 8601, UTC.", examples=["2026-10-01"]
    )
    valid_to: Annotated[str, Option(flag="--to")] = Field(
        max_length=40, description="End of the term, ISO 8601, exclusive.", examples=["2027-10-01"]
    )
    rate_per_gpu_hour: Annotated[str, Option(flag="--rate")] = Field(
        max_length=40,
        description="Paid per GPU-hour for every hour of the term, used or not; a decimal with at most six "
        "places. 0 if everything is paid upfront.",
        examples=["1.80"],
    )
    upfront: Annotated[str, Option()] = Field(
        "0", max_length=40, description="Paid once, and amortized evenly over the term.", examples=["9000"]
    )
    currency: Annotated[Currency, Option()] = Field("USD", description="Three-letter code.")
    region: Annotated[str, Option()] = Field(
        "", max_length=63, pattern=r"^[ -~]*$", description="Empty: engines of any region use it."
    )
    description: Annotated[str, Option()] = Field(
        "", max_length=300, description="The provider's name for it."
    )


class Commitment(Answer):
    id: int
    gpu_type: str
    region: str = Field(description="Empty: engines of any region use it.")
    gpus: int
    valid_from: str
    valid_to: str = Field(description="Exclusive.")
    rate_per_gpu_hour: str
    upfront: str
    currency: str
    description: str
    recorded_at: str
    recorded_by: str = Field(description="Id of the key.")
    withdrawn_at: str | None
    withdrawn_by: str | None
    withdrawn_reason: str | None


class CommitmentUse(Answer):
    id: int
    description: str
    gpu_type: str
    region: str
    gpus: int
    committed_gpu_hours: Hours
    used_gpu_hours: Hours
    unused_gpu_hours: Hours
    utilization: str | None = Field(description="Used by committed hours, 0 to 1.")
    hourly_cost: Money
    amortized_upfront: Money
    net_cost: Money
    unused_cost: Money
    list_cost: Money | None = Field(description="Of the used hours; null: a price is missing.")
    savings: Money | None


class CommitmentTotals(Answer):
    net_cost: Money
    unused_cost: Money


class Coverage(Answer):
    gpu_type: str
    provisioned_gpu_hours: Hours
    covered_gpu_hours: Hours
    coverage: str | None = Field(description="Covered by provisioned hours, 0 to 1.")
    reserved_without_commitment_gpu_hours: Hours
    spot_gpu_hours: Hours
    on_demand_gpu_hours: Hours


class SpotSavings(Answer):
    gpu_type: str
    region: str
    gpu_hours: Hours
    cost: Money | None
    list_cost: Money | None
    savings: Money | None


class CommitmentReport(Complete):
    month: str
    start: Start
    to: End
    currency: str | None
    rows: tuple[CommitmentUse, ...]
    totals: CommitmentTotals
    gpu_types: tuple[Coverage, ...]
    spot: tuple[SpotSavings, ...]

"""Add commitments, and withdraw wrong ones."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gateway.costs.commitments.commitment import CommitmentError
from gateway.costs.commitments.commitment_store import (
    CommitmentNotFoundError,
    add_commitment,
    withdraw_commitment,
)
from gateway.costs.periods import PeriodError, instant
from gateway.errors import FlorinError
from gateway.operations.authorization import actor_of
from gateway.operations.state import State
from gateway.operations.transaction import Json
from gateway.schemas.base import Count, StrictBody
from gateway.tenants.directory import Key


class NewCommitment(StrictBody):
    gpu_type: Annotated[
        str, Field(min_length=1, max_length=63, pattern=r"^[ -~]+$", description="As engines are labelled.")
    ]
    gpus: Annotated[Count, Field(description="Number of GPUs that are paid for.", examples=[8])]
    valid_from: Annotated[str, Field(max_length=40, description="ISO 8601, UTC.", examples=["2026-10-01"])]
    valid_to: Annotated[str, Field(max_length=40, description="Exclusive.", examples=["2027-10-01"])]
    rate_per_gpu_hour: Annotated[
        str,
        Field(
            max_length=40,
            description="Paid for every hour of the term, used or not; a decimal with at most six places. 0 "
            "if everything is paid upfront.",
            examples=["1.80"],
        ),
    ]
    upfront: Annotated[
        str,
        Field(max_length=40, description="Paid once, and amortised evenly over the term.", examples=["9000"]),
    ] = "0"
    currency: Annotated[str, Field(pattern="^[A-Z]{3}$")] = "USD"
    region: Annotated[
        str, Field(max_length=63, pattern=r"^[ -~]*$", description="Empty: engines of any region use it.")
    ] = ""
    description: Annotated[str, Field(max_length=300, description="The provider's name for it.")] = ""


async def add(state: State, new: NewCommitment, key: Key) -> tuple[Json, bool]:
    """Return the commitment, and False if the same one existed already. Raises FlorinError,
    LedgerUnavailableError."""
    try:
        return await state.ledger_process.run(
            add_commitment,
            gpu_type=new.gpu_type,
            region=new.region,
            gpus=new.gpus,
            valid_from=instant("valid_from", new.valid_from),
            valid_to=instant("valid_to", new.valid_to),
            rate=new.rate_per_gpu_hour,
            upfront=new.upfront,
            currency=new.currency,
            description=new.description,
            now=state.clock.now(),
            by=key.id,
            actor=actor_of(key),
        )
    except (CommitmentError, PeriodError) as error:
        raise FlorinError("invalid_value", str(error), param=error.param) from error


async def withdraw(state: State, number: int, *, reason: str, key: Key) -> Json:
    """Withdraw a commitment. Raises FlorinError, LedgerUnavailableError."""
    try:
        return await state.ledger_process.run(
            withdraw_commitment,
            number,
            reason=reason,
            now=state.clock.now(),
            by=key.id,
            actor=actor_of(key),
        )
    except CommitmentNotFoundError as error:
        raise FlorinError("not_found", str(error)) from error

"""Add commitments, and withdraw wrong ones."""

from __future__ import annotations

from gateway.costs.commitments.commitment_store import (
    CommitmentNotFoundError,
    add_commitment,
    withdraw_commitment,
)
from gateway.costs.commitments.schemas import NewCommitment
from gateway.costs.periods import instant
from gateway.errors import FlorinError
from gateway.operations.authorization import actor_of
from gateway.operations.state import State
from gateway.operations.transaction import Json
from gateway.tenants.directory import Key


async def add(state: State, new: NewCommitment, key: Key) -> tuple[Json, bool]:
    """Return the commitment, and False if the same one existed already. Raises FlorinError,
    LedgerUnavailableError."""
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

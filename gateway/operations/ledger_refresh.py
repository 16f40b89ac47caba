"""Bring the ledger up to date before it is read."""

from __future__ import annotations

from gateway.costs.maintenance.ledger_process import LedgerProcess
from gateway.costs.rollups.rollup import roll
from gateway.operations.state import State

ROLL_SECONDS = 10.0
"""Longest roll-up before an answer; maintenance continues it."""


async def refresh(state: State, process: LedgerProcess) -> bool:
    """Ship this worker's records and roll up what is new. Returns False if records are still on their way
    into the ledger. Raises LedgerUnavailableError."""
    complete = await state.meter.flush()
    await process.run(roll, state.clock.now(), patience=ROLL_SECONDS)
    return complete

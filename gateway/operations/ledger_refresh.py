"""Bring the ledger up to date before it is read."""

from __future__ import annotations

from gateway.costs.maintenance.ledger_process import LedgerProcess
from gateway.costs.rollups.rollup import roll
from gateway.operations.state import State

ROLL_SECONDS = 10.0
"""Longest roll-up before an answer; maintenance continues it."""


async def refresh(state: State, process: LedgerProcess) -> bool:
    """Ship this worker's records and roll up what is new. Returns False if that takes longer than its time:
    figures then lack records. Raises LedgerUnavailableError."""
    flushed = await state.meter.flush()
    rolled = await process.run(roll, state.clock.now(), patience=ROLL_SECONDS)
    return flushed and rolled.pending == 0

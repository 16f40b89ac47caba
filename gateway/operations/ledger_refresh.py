"""Bring the ledger up to date before it is read."""

from __future__ import annotations

from gateway.costs.maintenance.ledger_process import LedgerProcess
from gateway.costs.rollups.rollup import roll
from gateway.operations.state import State
from gateway.operations.transaction import Json

ROLL_SECONDS = 10.0
"""Longest roll-up before an answer; maintenance continues it."""


def completeness(state: State, *, complete: bool) -> Json:
    """What an answer says of its figures: `complete`, and `missing` if other gateways' records are in another
    ledger. `complete`: whether this ledger has all of its own."""
    if not state.gateways.missing:
        return {"complete": complete}
    return {"complete": False, "missing": state.gateways.missing}


def completeness_headers(state: State, *, complete: bool) -> dict[str, str]:
    """The same for a file."""
    shown = completeness(state, complete=complete)
    return {
        "x-florin-complete": "true" if shown["complete"] else "false",
        **({"x-florin-missing": shown["missing"]} if "missing" in shown else {}),
    }


async def refresh(state: State, process: LedgerProcess) -> bool:
    """Ship this worker's records and roll up what is new. Returns False if that takes longer than its time:
    figures then lack records. Raises LedgerUnavailableError."""
    flushed = await state.meter.flush()
    rolled = await process.run(roll, state.clock.now(), patience=ROLL_SECONDS)
    return flushed and rolled.pending == 0

"""Engine-hours that cannot be rolled up: list them, and exclude their implausible records."""

from __future__ import annotations

from gateway.costs.rollups.rollup import roll
from gateway.costs.rollups.set_aside import NotSetAsideError, exclude, hour_text, list_set_aside
from gateway.errors import FlorinError
from gateway.operations.ledger_refresh import ROLL_SECONDS
from gateway.operations.state import State
from gateway.operations.transaction import Json


async def entries(state: State) -> list[Json]:
    """The hours that are set aside, oldest first, after a roll-up has tried them again. Raises
    LedgerUnavailableError."""
    await state.ledger_process.run(roll, state.clock.now(), patience=ROLL_SECONDS)
    return await state.ledger_process.run(list_set_aside)


async def exclude_records(state: State, engine: str, hour: int, *, everything: bool, actor: str) -> Json:
    """Quarantine the implausible records of an hour, or all of them, and roll up the rest. Returns how many
    records were `quarantined` and `kept`, and whether the hour still is `set_aside`. Raises FlorinError,
    LedgerUnavailableError."""
    try:
        done = await state.ledger_process.run(
            exclude, engine=engine, hour=hour, everything=everything, actor=actor, now=state.clock.now()
        )
    except NotSetAsideError as error:
        raise FlorinError("not_found", str(error), param="hour") from error
    left = {(entry["engine"], entry["hour"]) for entry in await entries(state)}
    return {
        "quarantined": done.quarantined,
        "kept": done.kept,
        "set_aside": (engine, hour_text(hour)) in left,
    }

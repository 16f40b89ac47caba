"""Add calibrations: what a token costs on a GPU type, as measured by `florin calibrate`."""

from __future__ import annotations

from typing import Any

from gateway.costs.calibration.store import Calibration, CalibrationConflictError, add_calibration
from gateway.costs.periods import PeriodError, instant
from gateway.errors import FlorinError
from gateway.operations.state import State


async def add(
    state: State,
    *,
    gpu_type: str,
    base_model: str,
    engine_version: str,
    valid_from: str | None,
    weights_ps: dict[str, int],
    document: dict[str, Any],
    actor: str,
) -> Calibration:
    """Add a calibration, which applies from `valid_from` on. Raises FlorinError, LedgerUnavailableError."""
    if not any(weights_ps.values()):
        raise FlorinError("invalid_value", "weights_ps: all are zero.", param="weights_ps")
    try:
        return await state.ledger_process.run(
            add_calibration,
            gpu_type=gpu_type,
            base_model=base_model,
            engine_version=engine_version,
            valid_from=None if valid_from is None else instant("valid_from", valid_from),
            weights_ps=weights_ps,
            document=document,
            now=state.clock.now(),
            actor=actor,
        )
    except PeriodError as error:
        raise FlorinError("invalid_value", str(error), param=error.param) from error
    except CalibrationConflictError as error:
        raise FlorinError("conflict", str(error)) from error

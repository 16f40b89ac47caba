"""Add calibrations: what a token costs on a GPU type, as measured by `florin calibrate`."""

from __future__ import annotations

from gateway.costs.calibration.schemas import NewCalibration
from gateway.costs.calibration.store import Calibration, CalibrationConflictError, add_calibration
from gateway.costs.periods import instant_or_none
from gateway.errors import FlorinError
from gateway.operations.state import State


async def add(state: State, new: NewCalibration, *, actor: str) -> Calibration:
    """Add a calibration, which applies from `valid_from` on. Raises FlorinError, LedgerUnavailableError."""
    weights_ps = new.weights_ps.model_dump()
    if not any(weights_ps.values()):
        raise FlorinError("invalid_value", "weights_ps: all are zero.", param="weights_ps")
    try:
        return await state.ledger_process.run(
            add_calibration,
            gpu_type=new.gpu_type,
            base_model=new.base_model,
            engine_version=new.engine_version,
            valid_from=instant_or_none("valid_from", new.valid_from),
            weights_ps=weights_ps,
            document=new.document,
            now=state.clock.now(),
            actor=actor,
        )
    except CalibrationConflictError as error:
        raise FlorinError("conflict", str(error)) from error

"""/admin/v1/calibrations: what a token costs on each GPU type, as measured by `florin calibrate`."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import Field

from gateway.api.admin.common import Operator
from gateway.api.dependencies import Actor, StateDep
from gateway.costs.calibration.store import CalibrationConflictError, add_calibration, list_calibrations
from gateway.costs.periods import PeriodError, instant
from gateway.errors import FlorinError
from gateway.operations.inputs import Label, StrictBody
from gateway.operations.transaction import Json

router = APIRouter(prefix="/calibrations", tags=["calibrations"], dependencies=[Operator])

Picoseconds = Annotated[int, Field(ge=0, le=10**18)]


class NewWeights(StrictBody):
    prefill: Picoseconds
    cached: Picoseconds
    decode: Picoseconds
    kv: Picoseconds
    load: Picoseconds


class NewCalibration(StrictBody):
    gpu_type: Label
    base_model: Label
    engine_version: str = Field("", max_length=200)
    valid_from: str | None = Field(
        None, description="ISO 8601, UTC; taken back to its whole hour. Left out: from the present hour on."
    )
    weights_ps: NewWeights = Field(description="GPU-picoseconds per unit.")
    document: dict[str, Any] = Field(
        default_factory=dict, description="How it was measured: intervals, samples, quality of the fit."
    )


@router.post("", status_code=201)
async def add(body: NewCalibration, state: StateDep, actor: Actor) -> Json:
    """Keep a calibration. Hours from `valid_from` on are divided by it; those before stay as they are."""
    weights = body.weights_ps.model_dump()
    if not any(weights.values()):
        raise FlorinError("invalid_value", "weights_ps: all are zero.", param="weights_ps")
    try:
        made = await state.ledger_process.run(
            add_calibration,
            gpu_type=body.gpu_type,
            base_model=body.base_model,
            engine_version=body.engine_version,
            valid_from=None if body.valid_from is None else instant("valid_from", body.valid_from),
            weights_ps=weights,
            document=body.document,
            now=state.clock.now(),
            actor=actor,
        )
    except PeriodError as error:
        raise FlorinError("invalid_value", str(error), param=error.param) from error
    except CalibrationConflictError as error:
        raise FlorinError("conflict", str(error)) from error
    return made.json()


@router.get("")
async def show(state: StateDep) -> Json:
    """All calibrations, newest first."""
    return {"data": [c.json() for c in await state.ledger_process.run(list_calibrations)]}

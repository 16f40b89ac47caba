"""/admin/v1/calibrations: the cost of a token on each GPU type, as measured by `florin calibrate`."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import Field

from gateway.api.admin.common import Operator
from gateway.api.dependencies import Actor, StateDep
from gateway.costs.calibration.store import list_calibrations
from gateway.operations import calibrations
from gateway.operations.transaction import Json
from gateway.schemas.base import Label, StrictBody

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
        None, description="ISO 8601, UTC; rounded down to the hour. Default: the current hour."
    )
    weights_ps: NewWeights = Field(description="GPU-picoseconds per unit.")
    document: dict[str, Any] = Field(
        default_factory=dict,
        description="Details of the measurement: intervals, samples, quality of the fit.",
    )


@router.post("", status_code=201)
async def add(body: NewCalibration, state: StateDep, actor: Actor) -> Json:
    """Add a calibration. It applies to the hours from `valid_from` on; earlier hours do not change."""
    made = await calibrations.add(state, **body.model_dump(), actor=actor)
    return made.json()


@router.get("")
async def show(state: StateDep) -> Json:
    """List all calibrations, newest first."""
    return {"data": [c.json() for c in await state.ledger_process.run(list_calibrations)]}

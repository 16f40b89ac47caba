"""/admin/v1/calibrations: the cost of a token on each GPU type, as measured by `florin calibrate`."""

from __future__ import annotations

from fastapi import APIRouter

from gateway.api.admin_requests import Operator
from gateway.api.dependencies import Actor, StateDep
from gateway.costs.calibration import operations as calibrations
from gateway.costs.calibration import store
from gateway.costs.calibration.schemas import Calibration, NewCalibration
from gateway.costs.periods import iso
from gateway.schemas.base import Listed

router = APIRouter(prefix="/calibrations", tags=["calibrations"], dependencies=[Operator])


@router.post("", status_code=201)
async def add(body: NewCalibration, state: StateDep, actor: Actor) -> Calibration:
    """Add a calibration. It applies to the hours from `valid_from` on; earlier hours do not change."""
    return _answer(await calibrations.add(state, body, actor=actor))


@router.get("")
async def show(state: StateDep) -> Listed[Calibration]:
    """List all calibrations, newest first."""
    kept = await state.ledger_process.run(store.list_calibrations)
    return Listed(data=tuple(map(_answer, kept)))


def _answer(kept: store.Calibration) -> Calibration:
    return Calibration.of(kept, valid_from=iso(kept.valid_from), recorded_at=iso(kept.recorded_at))

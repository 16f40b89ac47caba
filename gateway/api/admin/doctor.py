"""/admin/v1/doctor: diagnoses the installation."""

from __future__ import annotations

from dataclasses import asdict

from fastapi import APIRouter

from gateway.api.admin.common import Operator
from gateway.api.dependencies import StateDep
from gateway.operations.doctor import diagnose
from gateway.operations.transaction import Json

router = APIRouter(tags=["doctor"], dependencies=[Operator])


@router.get("/doctor")
async def doctor(state: StateDep) -> Json:
    """All checks with `status` ok, warning or problem, the worst first. Queries every engine."""
    return {"data": [asdict(d) for d in await diagnose(state)]}

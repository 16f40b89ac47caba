"""/admin/v1/doctor: what is wrong with this installation, and how to fix it."""

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
    """Every check with `status` ok, warning or problem, the worst first. Each engine is asked now."""
    return {"data": [asdict(d) for d in await diagnose(state)]}

"""/admin/v1/doctor: diagnoses the installation."""

from __future__ import annotations

from fastapi import APIRouter

from gateway.api.admin_requests import Operator
from gateway.api.dependencies import StateDep
from gateway.installation.doctor.operations.doctor import diagnose
from gateway.installation.schemas import Diagnosis
from gateway.schemas.base import Listed

router = APIRouter(tags=["doctor"], dependencies=[Operator])


@router.get("/doctor")
async def doctor(state: StateDep) -> Listed[Diagnosis]:
    """All checks, the worst first. Queries every engine."""
    return Listed(data=tuple(map(Diagnosis.of, await diagnose(state))))

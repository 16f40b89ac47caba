"""/admin/v1/doctor, /gateways and /settings: what is wrong with this installation, its gateways, and what the
one that answers is set to."""

from __future__ import annotations

import os

from fastapi import APIRouter

from gateway.api.admin_requests import Operator
from gateway.api.dependencies import StateDep
from gateway.installation.doctor.operations.doctor import diagnose
from gateway.installation.schemas import Diagnosis, Gateway, Settings
from gateway.installation.settings import operations as settings
from gateway.schemas.base import Listed

router = APIRouter(tags=["doctor"], dependencies=[Operator])


@router.get("/doctor")
async def doctor(state: StateDep) -> Listed[Diagnosis]:
    """All checks, the worst first. Queries every engine."""
    return Listed(data=tuple(map(Diagnosis.of, await diagnose(state))))


@router.get("/gateways")
async def list_gateways(state: StateDep) -> Listed[Gateway]:
    """The running gateways of this installation, that which answers first."""
    return Listed(data=tuple(map(Gateway.of, state.gateways.all)))


@router.get("/settings")
async def show_settings(state: StateDep) -> Settings:
    """The settings of the gateway that answers. Of secrets, only whether they are set."""
    return Settings(
        data=tuple(settings.effective(state.settings, os.environ)),
        certificates=tuple(settings.certificates(state.security)),
        versions=settings.versions(),
    )

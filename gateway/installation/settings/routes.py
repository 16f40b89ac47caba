"""GET /admin/v1/settings: what a gateway is set to."""

from __future__ import annotations

import os

from fastapi import APIRouter

from gateway.api.admin_requests import Operator
from gateway.api.dependencies import StateDep
from gateway.installation.schemas import Settings
from gateway.installation.settings import operations as settings

router = APIRouter(tags=["doctor"], dependencies=[Operator])


@router.get("/settings")
async def show_settings(state: StateDep) -> Settings:
    """The settings of the gateway that answers. Of secrets, only whether they are set."""
    return Settings(
        data=tuple(settings.effective(state.settings, os.environ)),
        certificates=tuple(settings.certificates(state.security)),
        versions=settings.versions(),
    )

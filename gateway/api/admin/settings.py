"""GET /admin/v1/settings: what a gateway is set to."""

from __future__ import annotations

import os

from fastapi import APIRouter

from gateway.api.admin.common import Operator
from gateway.api.dependencies import StateDep
from gateway.operations import settings
from gateway.operations.transaction import Json

router = APIRouter(tags=["doctor"], dependencies=[Operator])


@router.get("/settings")
async def show_settings(state: StateDep) -> Json:
    """The settings of the gateway that answers: value, default, where the value comes from (`default`,
    `environment` or `florin.yaml`), and whether SIGHUP reloads it. Of secrets, only whether they are set.
    `certificates`: those of its TLS listener and for engines. `versions`: of Florin and its libraries."""
    return {
        "data": settings.effective(state.settings, os.environ),
        "certificates": settings.certificates(state.security),
        "versions": settings.versions(),
    }

"""GET /admin/v1/gateways: the gateways that share this Redis."""

from __future__ import annotations

from fastapi import APIRouter

from gateway.api.admin_requests import Operator
from gateway.api.dependencies import StateDep
from gateway.installation.schemas import Gateway
from gateway.schemas.base import Listed

router = APIRouter(tags=["doctor"], dependencies=[Operator])


@router.get("/gateways")
async def list_gateways(state: StateDep) -> Listed[Gateway]:
    """The running gateways of this installation, that which answers first."""
    return Listed(data=tuple(map(Gateway.of, state.gateways.all)))

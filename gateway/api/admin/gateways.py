"""GET /admin/v1/gateways: the gateways that share this Redis."""

from __future__ import annotations

from fastapi import APIRouter

from gateway.api.admin.common import Operator
from gateway.api.dependencies import StateDep
from gateway.operations.transaction import Json
from gateway.runtime.gateways import as_json

router = APIRouter(tags=["doctor"], dependencies=[Operator])


@router.get("/gateways")
async def list_gateways(state: StateDep) -> Json:
    """The running gateways of this installation, that which answers first: version and commit (empty:
    unknown), when it started, its `ledger` (gateways that share one have the same) and Redis, how many of its
    workers have died, and `deaths`, those of the last hour with their exit codes. Times are Unix
    microseconds. A gateway that was killed is listed for up to 15 seconds."""
    return {"data": [as_json(one) for one in state.gateways.all]}

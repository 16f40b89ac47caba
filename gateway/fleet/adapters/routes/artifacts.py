"""/admin/v1/artifacts: the files of versions, for hosts that stage them on local disk."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import FileResponse

from gateway.api.admin_requests import Host
from gateway.api.dependencies import HostKey, StateDep
from gateway.fleet.adapters.operations import artifacts

router = APIRouter(prefix="/artifacts", tags=["engines"], dependencies=[Host])


@router.get(
    "/{digest}/{file}",
    response_class=FileResponse,
    responses={200: {"content": {"application/octet-stream": {}}}},
)
async def get_artifact(
    digest: str, file: str, state: StateDep, key: HostKey, request: Request
) -> FileResponse:
    """One of the two files of the version with the digest `sha256:<digest>`, or a range of it. An engine's
    key only gets the files of versions placed on its engine; for others the response is the same as for
    unknown ones. It gets them only from the address of the engine's URL, which may be a name."""
    peer = request.client.host if request.client else None
    path = await artifacts.find(state, key, digest, file, peer)
    return FileResponse(path, media_type="application/octet-stream", headers={"etag": f'"{digest}"'})

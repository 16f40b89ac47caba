"""/admin/v1/artifacts: versions' files, for the hosts that stage them on their own disks."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import FileResponse

from gateway.api.admin.common import Host
from gateway.api.dependencies import HostKey, StateDep
from gateway.operations import artifacts

router = APIRouter(prefix="/artifacts", tags=["engines"], dependencies=[Host])


@router.get("/{digest}/{file}", response_class=FileResponse)
async def get_artifact(digest: str, file: str, state: StateDep, key: HostKey) -> FileResponse:
    """One of the two files of the version whose digest is `sha256:<digest>`, or a range of it. An engine's
    key is given those of the versions that are placed on its engine; of others it does not hear whether they
    are there."""
    path = artifacts.find(state, key, digest, file)
    return FileResponse(path, media_type="application/octet-stream", headers={"etag": f'"{digest}"'})

"""POST /admin/v1/adapters and …/upload: registers an adapter or a new version, from a source that the gateway
fetches, or from uploaded files."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import PurePosixPath
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from adapters.model import AdapterName
from adapters.registry.changes.versions import Registered
from adapters.registry.ingest import Upload
from gateway.api.admin_requests import Managed
from gateway.api.dependencies import Manager, StateDep
from gateway.api.progress import answer, in_openapi
from gateway.errors import FlorinError
from gateway.fleet.adapters.operations import adapters, uploads
from gateway.fleet.adapters.routes.answers import label
from gateway.fleet.adapters.routes.upload_stream import receive
from gateway.fleet.adapters.schemas.adapters import (
    AssumeBase,
    BaseName,
    Digest,
    Finding,
    FullName,
    NewAdapter,
    RegisteredVersion,
    UnverifiedShapes,
)
from gateway.operations.progress import OperationProgress

router = APIRouter(prefix="/adapters", tags=["adapters"], dependencies=[Managed])


@router.post("", status_code=201, response_model=RegisteredVersion, responses=in_openapi(RegisteredVersion))
async def add_adapter(body: NewAdapter, request: Request, state: StateDep, authority: Manager) -> Response:
    """Register an adapter or a new version (201). If a version with the same content exists, returns it
    (200). The first version is live at once. With `accept: application/x-ndjson`, the response is a line per
    step, {"step", "done", "total"}, and a final line with {"result"} or {"error"}."""
    name = AdapterName.parse(body.adapter)
    authority.check_vouching(unverified_shapes=body.unverified_shapes)
    await adapters.begin_fetch(state, authority, name, body.source)

    async def work(progress: OperationProgress) -> tuple[int, RegisteredVersion]:
        return registered(
            name,
            await adapters.register(
                state,
                name,
                body.source,
                base_model=body.base_model,
                assume_base=body.assume_base,
                unverified_shapes=body.unverified_shapes,
                digest=body.digest,
                authority=authority,
                progress=progress,
            ),
        )

    return await answer(request, work, authority)


def registered(name: AdapterName, done: Registered) -> tuple[int, RegisteredVersion]:
    """Status and body of the response."""
    return 201 if done.created else 200, RegisteredVersion(
        adapter=str(name),
        version=f"v{done.version.number}",
        digest=done.version.digest,
        live=label(done.live),
        created=done.created,
        warnings=tuple(map(Finding.model_validate, done.version.warnings)),
    )


_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "properties": {"file": {"type": "string", "format": "binary"}},
                    "required": ["file"],
                }
            },
        },
    }
}


@router.post(
    "/upload",
    status_code=201,
    response_model=RegisteredVersion,
    responses=in_openapi(RegisteredVersion),
    openapi_extra=_BODY,
)
async def upload(
    *,
    request: Request,
    state: StateDep,
    authority: Manager,
    adapter: FullName,
    base_model: BaseName = None,
    assume_base: AssumeBase = False,
    unverified_shapes: UnverifiedShapes = False,
    digest: Digest = None,
    file_name: Annotated[str, Query(max_length=500, description="Shown as the version's source.")] = "",
) -> Response:
    """Register an adapter or a new version from a tar, tar.gz or zip file, sent as the body or as the only
    file of a form. Responds like POST /admin/v1/adapters."""
    name = AdapterName.parse(adapter)
    async with AsyncExitStack() as stack:
        try:
            authority.check_vouching(unverified_shapes=unverified_shapes)
            declared = int(request.headers.get("content-length", 0))
            most = await adapters.check_upload(state, authority, name, base_model, declared)
            path = await stack.enter_async_context(uploads.room(state, authority, declared, most))
            await adapters.count_upload(state, authority)
            got = await receive(request, path, limit=most, idle=state.settings.upload_idle_timeout)
        except OSError as error:
            return _hang_up(adapters.disk_failure("The upload", error, authority))
        except FlorinError as refusal:
            return _hang_up(refusal)
        theirs = stack.pop_all()  # now owned by the work, which may outlive the request

    async def work(progress: OperationProgress) -> tuple[int, RegisteredVersion]:
        async with theirs:
            done = await adapters.register(
                state,
                name,
                Upload(path, _readable(file_name or got.name)),
                base_model=base_model,
                assume_base=assume_base,
                unverified_shapes=unverified_shapes,
                digest=digest,
                authority=authority,
                progress=progress,
            )
        return registered(name, done)

    return await answer(request, work, authority)


def _hang_up(error: FlorinError) -> Response:
    """Closes the connection instead of reading the rest of the body."""
    headers = {**error.headers, "connection": "close"}
    return Response(error.body(), error.status, headers, "application/json")


def _readable(name: str) -> str:
    """The client's file name without directories and control characters."""
    last = PurePosixPath(name.replace("\\", "/")).name
    return "".join(c if c.isprintable() else "?" for c in last)[:200]

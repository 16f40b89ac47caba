"""POST /admin/v1/adapters/upload: an adapter, or a new version of one, whose files come with the request."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import PurePosixPath
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from adapters.model import AdapterName
from adapters.registry.registration import Upload
from gateway.api.admin.adapter_registration import AssumeBase, BaseName, Digest, FullName, rendered
from gateway.api.admin.common import Operator
from gateway.api.admin.progress import answer
from gateway.api.admin.upload_stream import receive
from gateway.api.dependencies import Actor, StateDep
from gateway.errors import FlorinError
from gateway.operations import adapters, uploads
from gateway.operations.progress import OperationProgress
from gateway.operations.transaction import Json

router = APIRouter(prefix="/adapters", tags=["adapters"], dependencies=[Operator])

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


@router.post("/upload", status_code=201, response_model=None, openapi_extra=_BODY)
async def upload(
    *,
    request: Request,
    state: StateDep,
    actor: Actor,
    adapter: FullName,
    base_model: BaseName = None,
    assume_base: AssumeBase = False,
    digest: Digest = None,
    file_name: Annotated[str, Query(max_length=500, description="For people.")] = "",
) -> Response:
    """Register an adapter or a new version from a tar, tar.gz or zip: the body itself, or the one file of a
    form. Answers as POST /admin/v1/adapters does."""
    name = AdapterName.parse(adapter)
    async with AsyncExitStack() as stack:
        try:
            await state.registrar.check(name, base_model)  # before gigabytes are sent for nothing
            declared = int(request.headers.get("content-length", 0))
            path = await stack.enter_async_context(uploads.room(state, declared))
            got = await receive(
                request,
                path,
                limit=uploads.largest(state),
                idle=state.settings.upload_idle_timeout,
            )
        except OSError as error:
            refusal = FlorinError("artifacts_unavailable", f"The upload cannot be stored: {error}.")
            return _hang_up(refusal)
        except FlorinError as refusal:
            return _hang_up(refusal)
        theirs = stack.pop_all()  # from here on the work's own, which outlives a caller that hangs up

    async def work(progress: OperationProgress) -> tuple[int, Json]:
        async with theirs:
            done = await adapters.add(
                state,
                name,
                Upload(path, _readable(file_name or got.name)),
                base_model=base_model,
                assume_base=assume_base,
                digest=digest,
                actor=actor,
                progress=progress,
            )
        return rendered(name, done)

    return await answer(request, work)


def _hang_up(error: FlorinError) -> Response:
    """The rest of the body is not waited for."""
    headers = {**error.headers, "connection": "close"}
    return Response(error.body(), error.status, headers, "application/json")


def _readable(name: str) -> str:
    """A client's file name as the registry keeps it: no directories, nothing that a terminal would obey."""
    last = PurePosixPath(name.replace("\\", "/")).name
    return "".join(c if c.isprintable() else "?" for c in last)[:200]

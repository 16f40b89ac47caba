"""POST /admin/v1/adapters: registers an adapter or a new version from a source that the gateway fetches."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Request, Response
from pydantic import Field, StringConstraints

from adapters.model import AdapterName
from adapters.registry.changes.versions import Registered
from gateway.api.admin.adapter_json import label
from gateway.api.admin.common import Managed
from gateway.api.admin.progress import answer
from gateway.api.dependencies import Manager, StateDep
from gateway.operations import adapters
from gateway.operations.progress import OperationProgress
from gateway.operations.transaction import Json
from gateway.schemas.base import StrictBody

router = APIRouter(prefix="/adapters", tags=["adapters"], dependencies=[Managed])

FullName = Annotated[str, Field(description="TENANT/NAME", max_length=200, examples=["acme/support"])]
BaseName = Annotated[str | None, Field(max_length=500, description="Base model, if several match.")]
AssumeBase = Annotated[bool, Field(description="Accept an adapter that names another base model.")]
UnverifiedShapes = Annotated[
    bool,
    Field(
        description="Vouch for an adapter's shapes where the base model's architecture is unknown. Operators "
        "only; of no effect for a known architecture."
    ),
]
Digest = Annotated[
    Annotated[str, StringConstraints(pattern="^sha256:[0-9a-f]{64}$")] | None,
    Field(description="Expected digest of the version. Omitted: any."),
]


class NewAdapter(StrictBody):
    adapter: FullName
    source: str = Field(
        description="An absolute directory on the gateway's host, or a URL: file, http(s), s3, hf.",
        min_length=1,
        max_length=4096,
    )
    base_model: BaseName = None
    assume_base: AssumeBase = False
    unverified_shapes: UnverifiedShapes = False
    digest: Digest = None


@router.post("", status_code=201, response_model=None)
async def add_adapter(body: NewAdapter, request: Request, state: StateDep, authority: Manager) -> Response:
    """Register an adapter or a new version (201). If a version with the same content exists, returns it
    (200). The first version is live at once. With `accept: application/x-ndjson`, the response is a line per
    step, {"step", "done", "total"}, and a final line with {"result"} or {"error"}."""
    name = AdapterName.parse(body.adapter)
    authority.check_vouching(unverified_shapes=body.unverified_shapes)
    await adapters.begin_fetch(state, authority, name, body.source)

    async def work(progress: OperationProgress) -> tuple[int, Json]:
        return rendered(
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


def rendered(name: AdapterName, done: Registered) -> tuple[int, Json]:
    """Status and body of the response."""
    return 201 if done.created else 200, {
        "adapter": str(name),
        "version": f"v{done.version.number}",
        "digest": done.version.digest,
        "live": label(done.live),
        "created": done.created,
        "warnings": done.version.warnings,
    }

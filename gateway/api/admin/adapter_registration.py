"""POST /admin/v1/adapters: an adapter, or a new version of one, from a source that the gateway fetches."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Request, Response
from pydantic import Field, StringConstraints

from adapters.model import AdapterName
from adapters.registry.changes import Registered
from gateway.api.admin.adapter_json import label
from gateway.api.admin.common import Operator
from gateway.api.admin.progress import answer
from gateway.api.dependencies import Actor, StateDep
from gateway.operations import adapters
from gateway.operations.inputs import StrictBody
from gateway.operations.progress import OperationProgress
from gateway.operations.transaction import Json

router = APIRouter(prefix="/adapters", tags=["adapters"], dependencies=[Operator])

FullName = Annotated[str, Field(description="TENANT/NAME", max_length=200, examples=["acme/support"])]
BaseName = Annotated[
    str | None, Field(max_length=500, description="The fleet, where several could be meant.")
]
AssumeBase = Annotated[bool, Field(description="Accept an adapter that names another base model.")]
Digest = Annotated[
    Annotated[str, StringConstraints(pattern="^sha256:[0-9a-f]{64}$")] | None,
    Field(description="What the version's digest must be. Left out: whatever it is."),
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
    digest: Digest = None


@router.post("", status_code=201, response_model=None)
async def add_adapter(body: NewAdapter, request: Request, state: StateDep, actor: Actor) -> Response:
    """Register an adapter or a new version: 201; the same content again: 200 and the version that has it.
    The first version is live at once. With `accept: application/x-ndjson`: a line for each step on the way,
    {"step", "done", "total"}, and a last one with {"result"} or {"error"}."""
    name = AdapterName.parse(body.adapter)

    async def work(progress: OperationProgress) -> tuple[int, Json]:
        return rendered(
            name,
            await adapters.add(
                state,
                name,
                body.source,
                base_model=body.base_model,
                assume_base=body.assume_base,
                digest=body.digest,
                actor=actor,
                progress=progress,
            ),
        )

    return await answer(request, work)


def rendered(name: AdapterName, done: Registered) -> tuple[int, Json]:
    """Status and object of the answer."""
    return 201 if done.created else 200, {
        "adapter": str(name),
        "version": f"v{done.version.number}",
        "digest": done.version.digest,
        "live": label(done.live),
        "created": done.created,
        "warnings": done.version.warnings,
    }

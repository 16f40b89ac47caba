"""POST /admin/v1/adapters: registers an adapter or a new version from a source that the gateway fetches."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from adapters.model import AdapterName
from adapters.registry.changes.versions import Registered
from gateway.api.admin_requests import Managed
from gateway.api.dependencies import Manager, StateDep
from gateway.api.progress import answer, in_openapi
from gateway.fleet.adapters.operations import adapters
from gateway.fleet.adapters.routes.answers import label
from gateway.fleet.adapters.schemas.adapters import Finding, NewAdapter, RegisteredVersion
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

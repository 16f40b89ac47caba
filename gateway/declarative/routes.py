"""GET /admin/v1/export and POST /admin/v1/apply: export the registry as a document, and apply one."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Body, Query, Request, Response

from gateway.api.admin_requests import Controlled, Operator, as_it_is
from gateway.api.dependencies import Confirm, ControllerKey, StateDep
from gateway.api.progress import answer, in_openapi
from gateway.declarative.operations import execute
from gateway.declarative.operations.apply import check_scope, export_registry, plan_apply
from gateway.declarative.operations.document import Document, parse
from gateway.declarative.schemas import Applied
from gateway.operations.authorization import actor_of
from gateway.operations.progress import OperationProgress

router = APIRouter(tags=["declarative"], dependencies=[Operator])
controlled = APIRouter(tags=["declarative"], dependencies=[Controlled])

_DOCUMENT = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Document"}}},
    }
}


@router.get("/export", response_model=None, responses={200: {"model": Document}})
async def export(state: StateDep) -> Response:
    """The registry as a document for `apply`: tenants, keys (as digests), base models, engines, adapters with
    their versions, prices."""
    return as_it_is(await export_registry(state))


@controlled.post("/apply", response_model=Applied, responses=in_openapi(Applied), openapi_extra=_DOCUMENT)
async def apply(
    *,
    body: Annotated[dict[str, Any], Body(description="A document as returned by `export`.")],
    request: Request,
    state: StateDep,
    key: ControllerKey,
    dry_run: Annotated[bool, Query(description="Only return what would change.")] = False,
    prune: Annotated[
        bool, Query(description="Remove objects that the document's sections do not list.")
    ] = False,
    agreed: Annotated[
        str | None,
        Query(
            alias="plan",
            max_length=64,
            description="Digest of the plan to carry out. 409 if the plan would be different now.",
        ),
    ] = None,
    confirm: Confirm = False,
) -> Response:
    """Change the registry to match the document. Returns 200 even if some actions failed: `failed` is their
    number, and each of `actions` has its `outcome`. With `accept: application/x-ndjson`, the response is a
    line per step, {"step", "done", "total"}, and a final line with {"result"} or {"error"}. A key of role
    `controller` can only change tenants and adapters, and prune nothing."""
    actor = actor_of(key)
    document = await asyncio.to_thread(parse, body)  # seconds of work for tens of thousands of adapters
    check_scope(key, document, prune=prune)
    plan = await plan_apply(state, document, prune=prune, agreed=agreed, actor=actor, confirmed=confirm)

    async def work(progress: OperationProgress) -> tuple[int, Applied]:
        if dry_run:
            outcomes = execute.planned(plan)
        else:
            outcomes = await execute.execute(state, plan, document, actor=actor, report=progress)
        return 200, Applied(
            dry_run=dry_run,
            plan=plan.digest,
            counts=plan.counts(),
            failed=sum(outcome.state in {"failed", "skipped"} for outcome in outcomes),
            actions=tuple(outcome.answer() for outcome in outcomes),
        )

    return await answer(request, work)

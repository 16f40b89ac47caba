"""GET /admin/v1/export and POST /admin/v1/apply: the whole registry as one document, and back."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Body, Query, Request, Response

from adapters.errors import ConflictError
from gateway.api.admin.common import Operator
from gateway.api.admin.progress import answer
from gateway.api.dependencies import Actor, StateDep
from gateway.costs.prices.price_store import list_prices
from gateway.operations.declarative import current, execute
from gateway.operations.declarative.actions import ApplyPlan
from gateway.operations.declarative.document import Document, parse
from gateway.operations.declarative.plan import plan
from gateway.operations.progress import OperationProgress
from gateway.operations.state import State
from gateway.operations.transaction import Json

router = APIRouter(tags=["declarative"], dependencies=[Operator])


@router.get("/export", responses={200: {"model": Document}})
async def export(state: StateDep) -> Json:
    """The registry as the document that `apply` takes: tenants, keys (as digests), base models, engines,
    adapters with their versions, prices."""
    return current.export(await _current(state))


@router.post("/apply", response_model=None, openapi_extra={"requestBody": {"required": True}})
async def apply(
    *,
    body: Annotated[dict[str, Any], Body(description="A document like the one that `export` returns.")],
    request: Request,
    state: StateDep,
    actor: Actor,
    dry_run: Annotated[bool, Query(description="Say what would change, and change nothing.")] = False,
    prune: Annotated[
        bool, Query(description="Remove what is not in the document, of the sections that are.")
    ] = False,
    agreed: Annotated[
        str | None,
        Query(
            alias="plan",
            max_length=64,
            description="Digest of the plan that was agreed to: 409 if it would be another now.",
        ),
    ] = None,
) -> Response:
    """Bring the registry to what the document says. 200 also when some of it failed: `failed` counts, and
    each of `actions` has its `outcome`. With `accept: application/x-ndjson`: a line for each step on the way,
    {"step", "done", "total"}, and a last one with {"result"} or {"error"}."""
    wanted = await asyncio.to_thread(parse, body)  # seconds of work for tens of thousands of adapters
    made = await _plan(state, wanted, prune=prune, actor=actor)
    if agreed not in (None, made.digest):
        raise ConflictError("The registry has changed since this plan was made: look at the new one first.")

    async def work(progress: OperationProgress) -> tuple[int, Json]:
        if dry_run:
            outcomes = execute.planned(made)
        else:
            outcomes = await execute.execute(state, made, wanted, actor=actor, report=progress)
        return 200, {
            "dry_run": dry_run,
            "plan": made.digest,
            "counts": made.counts(),
            "failed": sum(o.state in {"failed", "skipped"} for o in outcomes),
            "actions": [o.json() for o in outcomes],
        }

    return await answer(request, work)


async def _plan(state: State, wanted: Document, *, prune: bool, actor: str) -> ApplyPlan:
    asking = actor.removeprefix("key:") if actor.startswith("key:") else ""
    return await asyncio.to_thread(
        plan, await _current(state), wanted, prune=prune, asking=asking, clock=state.clock.now()
    )


async def _current(state: State) -> current.Current:
    book = await asyncio.to_thread(list_prices, state.ledger)
    return current.read(state.catalog, state.directory, book)

"""/admin/v1/batches: the batches of all tenants."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query

from gateway.api.admin_requests import Operator
from gateway.api.dependencies import Actor, StateDep
from gateway.batches import documents
from gateway.batches import operations as batches
from gateway.batches.documents import BatchStatus
from gateway.batches.rows import Page
from gateway.batches.schemas import Batch, BatchPage
from gateway.costs.periods import iso

router = APIRouter(prefix="/batches", tags=["batches"], dependencies=[Operator])

Id = Annotated[str, Path(max_length=40, pattern=r"^[!-~]+$", description="Like `batch_6f1c…`.")]


@router.get("")
async def list_batches(
    *,
    state: StateDep,
    tenant: Annotated[str, Query(max_length=100, pattern=r"^[^\x00]*$")] = "",
    status: Annotated[BatchStatus | None, Query(description="As in OpenAI's API.")] = None,
    after: Annotated[
        str, Query(max_length=40, pattern=r"^[!-~]*$", description="Id of the last one of the previous page.")
    ] = "",
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> BatchPage:
    """List batches, newest first. Prompts and answers are not shown."""
    listed, has_more = await batches.list_batches(
        state, Page(limit, after), tenant=tenant, status="" if status is None else status.value
    )
    return BatchPage(data=tuple(map(_shown, listed)), has_more=has_more)


@router.get("/{batch_id}")
async def show_batch(batch_id: Id, state: StateDep) -> Batch:
    """One batch: its progress, its owner, and the worker that runs it."""
    return _shown(await batches.find(state, batch_id))


@router.post("/{batch_id}/cancel")
async def cancel(batch_id: Id, state: StateDep, actor: Actor) -> Batch:
    """Cancel a batch. Its lines in flight are aborted and not billed; what was answered stays in its output
    file, and the rest is in its error file."""
    return _shown(await batches.cancel(state, batch_id, actor=actor))


def _shown(batch: documents.Batch) -> Batch:
    return Batch.model_validate(
        {
            **batch.document(),
            "tenant": batch.tenant,
            "key": batch.key_id,
            "worker": batch.owner or None,
            "progress_at": iso(batch.progress_at),
        }
    )

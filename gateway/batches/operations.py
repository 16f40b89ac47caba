"""What operators see of tenants' batches, and do to them. Tenants use /v1/batches."""

from __future__ import annotations

from gateway.batches.documents import Batch
from gateway.batches.rows import Page, UnknownCursorError
from gateway.errors import FlorinError
from gateway.operations.state import State


async def list_batches(state: State, page: Page, *, tenant: str, status: str) -> tuple[list[Batch], bool]:
    """A page, newest first, and whether more follow. Raises FlorinError, LedgerUnavailableError."""
    runner = state.batches
    try:
        return await runner.in_thread(runner.batches.list, None, page, tenant=tenant, status=status)
    except UnknownCursorError:
        raise FlorinError("invalid_value", "after: no batch has this id.", param="after") from None


async def find(state: State, batch_id: str) -> Batch:
    """Raises FlorinError, LedgerUnavailableError."""
    batch = await state.batches.in_thread(state.batches.batches.find, batch_id)
    if batch is None:
        raise _absent(batch_id)
    return batch


async def cancel(state: State, batch_id: str, *, actor: str) -> Batch:
    """The worker that runs it notices within seconds. Raises FlorinError, LedgerUnavailableError."""
    runner = state.batches
    batch = await runner.in_thread(runner.batches.cancel, None, batch_id, actor=actor, now=runner.now())
    if batch is None:
        raise _absent(batch_id)
    runner.look()
    return batch


def _absent(batch_id: str) -> FlorinError:
    return FlorinError("not_found", f"There is no batch {batch_id[:80]!r}.")

"""Room for an upload: one of the worker's places, and a staging directory on the artifact disk.

Tenants' own administrators have places of their own: a few at a time for all of them, fewer for each, and in
turn. So an operator never waits for a tenant, nor one tenant for another's slow uploads. What lies on the
disk meanwhile is bounded: the places of a tenant times the largest upload.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from adapters.registry.artifacts import ArtifactStore
from adapters.sources.staging_area import check_space
from gateway.admission.owner_queue import OwnerQueue, QueueFullError, QueueTimeoutError
from gateway.errors import FlorinError
from gateway.operations.authorization import Authority
from gateway.operations.state import State

PACKING = 1024 * 1024
"""Bytes that an archive may have in addition to its files."""


def largest(state: State, quota: int | None = None) -> int:
    """The largest archive accepted, in bytes. `quota`: bytes that the tenant may have at all."""
    most = state.settings.max_adapter_bytes
    return (most if quota is None else min(most, quota)) + PACKING


@asynccontextmanager
async def room(state: State, authority: Authority, size: int, most: int) -> AsyncGenerator[Path, None]:
    """A path for an archive of `size` bytes (0 if unknown) and at most `most`, removed on exit. Raises
    FlorinError, and OSError if the disk fails or is too full."""
    # A client that waits for its turn has not sent anything yet that would take disk.
    queue = state.intake.uploads if authority.tenant is None else state.intake.tenant_uploads
    async with turn(queue, authority), _staging(state.artifacts) as box:
        check_space(box, min(size, most))
        yield box / "upload"


@asynccontextmanager
async def turn(queue: OwnerQueue, authority: Authority) -> AsyncGenerator[None, None]:
    """One of the queue's places. Raises FlorinError."""
    try:
        async with queue.acquire(authority.tenant or ""):
            yield
    except QueueFullError:
        raise FlorinError(
            "too_many_uploads", "This tenant has too many uploads in progress on this worker.", retry_after=10
        ) from None
    except QueueTimeoutError:
        raise FlorinError(
            "too_many_uploads", "This worker takes in as many uploads as it may already.", retry_after=10
        ) from None


@asynccontextmanager
async def _staging(artifacts: ArtifactStore) -> AsyncIterator[Path]:
    """A staging directory, removed even if this process dies. Disk access runs in a thread."""
    staging = artifacts.staging()
    box = await asyncio.to_thread(staging.__enter__)
    try:
        yield box
    finally:
        await asyncio.shield(asyncio.to_thread(staging.__exit__, None, None, None))

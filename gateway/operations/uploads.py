"""Room for an upload: one of the worker's upload slots, and a staging directory on the artifact disk."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from adapters.registry.artifacts import ArtifactStore
from adapters.sources.staging_area import check_space
from gateway.errors import FlorinError
from gateway.operations.state import State

PACKING = 1024 * 1024
"""Bytes that an archive may have in addition to its files."""
_TURN_SECONDS = 20.0


def largest(state: State) -> int:
    """The largest archive accepted, in bytes."""
    return state.settings.max_adapter_bytes + PACKING


@asynccontextmanager
async def room(state: State, size: int) -> AsyncGenerator[Path, None]:
    """A path for an archive of `size` bytes (0 if unknown), removed on exit. Raises FlorinError, and OSError
    if the disk fails or is too full."""
    async with _turn(state), _staging(state.artifacts) as box:
        check_space(box, min(size, largest(state)))
        yield box / "upload"


@asynccontextmanager
async def _turn(state: State) -> AsyncGenerator[None, None]:
    """Hold an upload slot. A client that waits for one has not sent anything yet that would take disk."""
    try:
        async with asyncio.timeout(_TURN_SECONDS):
            await state.uploads.acquire()
    except TimeoutError:
        raise FlorinError(
            "too_many_uploads", "This worker takes in as many uploads as it may already.", retry_after=10
        ) from None
    try:
        yield
    finally:
        state.uploads.release()


@asynccontextmanager
async def _staging(artifacts: ArtifactStore) -> AsyncIterator[Path]:
    """A staging directory, removed even if this process dies. Disk access runs in a thread."""
    staging = artifacts.staging()
    box = await asyncio.to_thread(staging.__enter__)
    try:
        yield box
    finally:
        await asyncio.shield(asyncio.to_thread(staging.__exit__, None, None, None))

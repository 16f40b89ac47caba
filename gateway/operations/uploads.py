"""Room for an upload: one of the worker's places, and a directory beside where its files will stay."""

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
"""What an archive may weigh beside its files."""
_TURN_SECONDS = 20.0


def largest(state: State) -> int:
    """Bytes of an archive."""
    return state.settings.max_adapter_bytes + PACKING


@asynccontextmanager
async def room(state: State, size: int) -> AsyncGenerator[Path, None]:
    """Where to write an archive of `size` bytes (0: it is not known); it is gone afterwards. Raises
    FlorinError, OSError (the disk, also when it is too full)."""
    async with _turn(state), _staging(state.artifacts) as box:
        check_space(box, min(size, largest(state)))
        yield box / "upload"


@asynccontextmanager
async def _turn(state: State) -> AsyncGenerator[None, None]:
    """One of the places for uploads. Those who wait for one have sent nothing yet that would take disk."""
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
    """Beside where the files will stay, and removed if this process dies. The disk is left to a thread."""
    staging = artifacts.staging()
    box = await asyncio.to_thread(staging.__enter__)
    try:
        yield box
    finally:
        await asyncio.shield(asyncio.to_thread(staging.__exit__, None, None, None))

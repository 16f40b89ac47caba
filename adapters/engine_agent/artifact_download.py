"""Downloads one version's files from the gateway, with retries, and verifies them."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import BinaryIO, Protocol

from adapters.checks.validate import FILES

log = logging.getLogger(__name__)

ATTEMPTS = 4
"""Attempts per file; an interrupted download resumes where it stopped."""
PAUSE_SECONDS = 0.5
"""Seconds before the second attempt; doubles with each."""
_WRITE_BYTES = 4 * 1024 * 1024


class StageError(Exception):
    """The version cannot be staged; the message says why, for the operator."""


class StagingInterruptedError(Exception):
    """A download was interrupted; a retry may succeed."""


class ArtifactSource(Protocol):
    """Provides the files; the gateway in production."""

    def artifact(
        self, hexdigest: str, name: str, start: int
    ) -> AbstractAsyncContextManager[tuple[int, AsyncIterator[bytes]]]:
        """Return the actual start (`start` or 0) and the file's bytes from there on. Raises
        StagingInterruptedError, StageError."""
        ...


async def download(source: ArtifactSource, hexdigest: str, size: int, directory: Path) -> None:
    """Write the version's files, `size` bytes together, to `directory`. Raises StageError, OSError."""
    left = size
    lines = []
    for name in sorted(FILES):
        got, content = await _file(source, hexdigest, name, directory / name, left)
        left -= got
        lines.append(f"{name}\0{content}\n")
    received = hashlib.sha256("".join(lines).encode()).hexdigest()
    if left or received != hexdigest:
        raise StageError(
            f"The gateway sent sha256:{received[:12]}… instead of sha256:{hexdigest[:12]}…: the "
            "files in the artifact store are damaged, or were modified in transit."
        )


async def _file(source: ArtifactSource, hexdigest: str, name: str, path: Path, limit: int) -> tuple[int, str]:
    """Fetch one file, with retries; return its size and hex SHA-256."""
    pause, broken = PAUSE_SECONDS, ""
    with path.open("wb") as file:
        got, content = 0, hashlib.sha256()
        for attempt in range(ATTEMPTS):
            if attempt:
                await asyncio.sleep(pause)
                pause *= 2
            try:
                async with source.artifact(hexdigest, name, got) as (start, chunks):
                    if start != got:
                        got, content = 0, hashlib.sha256()
                        file.seek(0)
                        file.truncate()
                    async for data in _batches(chunks):
                        got += len(data)
                        if got > limit:
                            raise StageError(f"{name} of sha256:{hexdigest[:12]}… is larger than announced.")
                        await asyncio.to_thread(_write, file, content.update, data)
            except StagingInterruptedError as error:
                log.warning("Download of %s interrupted after %d bytes: %s", name, got, error)
                broken = str(error)
            else:
                os.fchmod(file.fileno(), 0o444)
                return got, content.hexdigest()
    raise StageError(f"{name} could not be fetched from the gateway: {broken}")


async def _batches(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Combine chunks into larger batches, because each is written in a thread. Bytes received before an
    interruption are still yielded."""
    batch = bytearray()
    try:
        async for chunk in chunks:
            batch += chunk
            if len(batch) >= _WRITE_BYTES:
                yield bytes(batch)
                batch.clear()
    except StagingInterruptedError:
        if batch:
            yield bytes(batch)
        raise
    if batch:
        yield bytes(batch)


def _write(file: BinaryIO, update: Callable[[bytes], None], data: bytes) -> None:
    file.write(data)
    update(data)

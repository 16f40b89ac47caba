"""Versions on this host's disk: fetched once, hash-checked, bounded.

    root/lock                   held while an agent uses it
    root/<digest hex>/…         the two files of a version; its time of change is its last use
    root/.staging/<random>/…    being fetched, or being removed

What is here after a start is believed only once it has been hashed again. Nothing is removed that the engine
lists, or has listed or been given within KEEP_SECONDS: vLLM reads a file again when its own cache missed, in
the middle of a step, and dies if it is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import hashlib
import logging
import os
import secrets
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Protocol

from adapters.checks.validate import FILES
from adapters.registry.artifacts import digest_of

log = logging.getLogger(__name__)

KEEP_SECONDS = 180.0
"""For which a version stays after the engine listed it last."""
ATTEMPTS = 4
"""At one file: a broken download goes on where it broke."""
PAUSE_SECONDS = 0.5
"""Before the second attempt, doubling."""
_WRITE_BYTES = 4 * 1024 * 1024
_STAGING = ".staging"


class StageError(Exception):
    """The version cannot be had here; the message says why, for the operator."""


class StagingInterruptedError(Exception):
    """A download ended early; another attempt may help."""


class Source(Protocol):
    """Where files come from."""

    def artifact(
        self, hexdigest: str, name: str, start: int
    ) -> AbstractAsyncContextManager[tuple[int, AsyncIterator[bytes]]]:
        """The file's bytes from `start` on, or from 0, as the number says. Raises StagingInterruptedError,
        StageError."""
        ...


@dataclass(slots=True)
class CacheEntry:
    size: int
    used: float
    """Seconds, by the cache's clock: below 0 for what an earlier agent left, in its order."""
    verified: bool = False


@dataclass(slots=True)
class Cache:
    """One agent's own. `listed`: the paths that the engine lists now; None: it cannot tell."""

    root: Path
    max_bytes: int
    source: Source
    listed: Callable[[], Awaitable[frozenset[str] | None]]
    clock: Callable[[], float] = time.monotonic
    _entries: dict[str, CacheEntry] = field(default_factory=dict)
    _staging_tasks: dict[str, asyncio.Task[Path]] = field(default_factory=dict)
    _coming: dict[str, int] = field(default_factory=dict)
    """Bytes that downloads have been promised."""
    _held: dict[str, float] = field(default_factory=dict)
    """When the engine listed it last, or it was given to the engine."""
    _looked: float = 0.0
    """When the engine's list was last read."""
    _lock: int | None = None

    @property
    def bytes(self) -> int:
        return sum(entry.size for entry in self._entries.values()) + sum(self._coming.values())

    @property
    def versions(self) -> int:
        return len(self._entries)

    @property
    def lock(self) -> int:
        assert self._lock is not None, "not open"
        return self._lock

    def open(self, taken_over: int | None = None) -> None:
        """Takes the lock and learns what is there. `taken_over`: descriptor of the lock, held already.
        Blocking. Raises StageError, OSError."""
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self.root.stat().st_mode & 0o077:  # customers' weights; the engine runs as this user
            with contextlib.suppress(PermissionError):  # a mount of another owner's
                self.root.chmod(0o700)
        self._lock = (
            os.open(self.root / "lock", os.O_RDWR | os.O_CREAT, 0o600) if taken_over is None else taken_over
        )
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            self._lock = None
            raise StageError(
                f"Another `florin engine run` uses {self.root}: give this one a --cache-dir of its own."
            ) from None
        shutil.rmtree(self.root / _STAGING, ignore_errors=True)
        (self.root / _STAGING).mkdir(exist_ok=True)
        now = time.time()
        for path in self.root.iterdir():
            if len(path.name) == 64 and all((path / name).is_file() for name in FILES):
                size = sum((path / name).stat().st_size for name in FILES)
                self._entries[path.name] = CacheEntry(size, min(0.0, path.stat().st_mtime - now))

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    async def stage(self, digest: str, size: int) -> Path:
        """The directory that holds the version of that digest, whose files have `size` bytes together.
        Whoever wants the same at the same time shares one download; it goes on when all have left. Raises
        StageError."""
        hexdigest = digest.removeprefix("sha256:")
        if len(hexdigest) != 64 or set(hexdigest) - set("0123456789abcdef"):
            raise StageError(f"{digest[:80]!r} is not a digest.")
        staging_task = self._staging_tasks.get(hexdigest)
        if staging_task is None:
            staging_task = asyncio.create_task(self._provide(hexdigest, size), name=f"stage {hexdigest[:12]}")
            self._staging_tasks[hexdigest] = staging_task
            staging_task.add_done_callback(lambda task: self._landed(hexdigest, task))
        return await asyncio.shield(staging_task)

    def observe(self, listed: Iterable[str]) -> None:
        """The engine lists these paths now."""
        self._looked = self.clock()
        for path in listed:
            if Path(path).parent == self.root:
                self._held[Path(path).name] = self._looked

    def forget(self) -> None:
        """The engine's process is gone, and holds nothing."""
        self._held.clear()

    async def drop(self) -> None:
        """End what is being fetched."""
        staging_tasks = list(self._staging_tasks.values())
        for staging_task in staging_tasks:
            staging_task.cancel()
        await asyncio.gather(*staging_tasks, return_exceptions=True)

    def _landed(self, hexdigest: str, task: asyncio.Task[Path]) -> None:
        del self._staging_tasks[hexdigest]
        self._coming.pop(hexdigest, None)
        if not task.cancelled() and (error := task.exception()):  # seen, should all who waited have left
            log.warning("staging %s failed: %s", hexdigest[:12], error)

    async def _provide(self, hexdigest: str, size: int) -> Path:
        path = self.root / hexdigest
        entry = self._entries.get(hexdigest)
        try:
            if entry and not (entry.verified and all((path / name).is_file() for name in FILES)):
                entry.verified = await asyncio.to_thread(_holds, path, hexdigest)
            if entry is None or not entry.verified:
                if entry:
                    log.warning("%s is damaged: fetching it again", path)
                    await self._remove(hexdigest)
                await self._make_room(hexdigest, size)
                await self._fetch(hexdigest, size)
                entry = self._entries[hexdigest] = CacheEntry(size, self.clock(), verified=True)
                self._coming.pop(hexdigest, None)  # it has come: it must not count twice
            os.utime(path)
        except OSError as error:
            if error.errno in {errno.ENOSPC, errno.EDQUOT}:
                raise StageError(f"The disk of the adapter cache, {self.root}, is full.") from error
            raise StageError(f"The adapter cache, {self.root}, failed: {error}.") from error
        entry.used = self._held[hexdigest] = self.clock()
        return path

    async def _make_room(self, hexdigest: str, size: int) -> None:
        """Promise `size` bytes to a download, at the cost of what was used least recently."""
        if size > self.max_bytes:
            raise StageError(
                f"The version has {size:,} bytes, more than the adapter cache may hold ({self.max_bytes:,}): "
                "raise --cache-size."
            )
        self._coming[hexdigest] = size
        if self.bytes <= self.max_bytes:
            return
        listed = await self.listed()
        if listed is not None:
            self.observe(listed)
        while self.bytes > self.max_bytes:
            free = [h for h in self._entries if h not in self._staging_tasks and not self._needed(h, listed)]
            if not free:
                raise StageError(
                    f"The adapter cache is full ({self.max_bytes:,} bytes) of versions that the engine holds "
                    f"or held within the last {KEEP_SECONDS / 60:.0f} minutes: raise --cache-size."
                )
            await self._remove(min(free, key=lambda h: self._entries[h].used))

    def _needed(self, hexdigest: str, listed: frozenset[str] | None) -> bool:
        """Whether the engine may read it. While it does not say what it lists, the time since it did so does
        not count."""
        held = self._held.get(hexdigest)
        if held is None:
            return False
        return held > (self._looked if listed is None else self.clock()) - KEEP_SECONDS

    async def _remove(self, hexdigest: str) -> None:
        """In one rename, so that no crash leaves half of it under its name."""
        del self._entries[hexdigest]
        pending_deletion = self.root / _STAGING / secrets.token_hex(8)
        with contextlib.suppress(FileNotFoundError):  # somebody has cleared it away
            (self.root / hexdigest).rename(pending_deletion)
        await asyncio.to_thread(shutil.rmtree, pending_deletion, ignore_errors=True)

    async def _fetch(self, hexdigest: str, size: int) -> None:
        box = self.root / _STAGING / secrets.token_hex(8)
        box.mkdir()
        try:
            left = size
            lines = []
            for name in sorted(FILES):
                got, content = await self._file(hexdigest, name, box / name, left)
                left -= got
                lines.append(f"{name}\0{content}\n")
            found = hashlib.sha256("".join(lines).encode()).hexdigest()
            if left or found != hexdigest:
                raise StageError(
                    f"What the gateway sent as sha256:{hexdigest[:12]}… is sha256:{found[:12]}…: the "
                    "artifact store's files are damaged, or were changed on the way."
                )
            box.chmod(0o755)
            with contextlib.suppress(FileNotFoundError):  # there is none, or one that lost files
                (self.root / hexdigest).rename(self.root / _STAGING / secrets.token_hex(8))
            box.rename(self.root / hexdigest)
        finally:
            await asyncio.to_thread(shutil.rmtree, box, ignore_errors=True)

    async def _file(self, hexdigest: str, name: str, path: Path, limit: int) -> tuple[int, str]:
        """Size and hex SHA-256 of one file, fetched in as many attempts as it takes."""
        pause, broken = PAUSE_SECONDS, ""
        with path.open("wb") as file:
            got, content = 0, hashlib.sha256()
            for attempt in range(ATTEMPTS):
                if attempt:
                    await asyncio.sleep(pause)
                    pause *= 2
                try:
                    async with self.source.artifact(hexdigest, name, got) as (start, chunks):
                        if start != got:
                            got, content = 0, hashlib.sha256()
                            file.seek(0)
                            file.truncate()
                        async for data in _batches(chunks):
                            got += len(data)
                            if got > limit:
                                raise StageError(
                                    f"{name} of sha256:{hexdigest[:12]}… is larger than was said."
                                )
                            await asyncio.to_thread(_write, file, content.update, data)
                except StagingInterruptedError as error:
                    log.warning("fetching %s broke after %d bytes: %s", name, got, error)
                    broken = str(error)
                else:
                    os.fchmod(file.fileno(), 0o444)
                    return got, content.hexdigest()
        raise StageError(f"{name} could not be fetched from the gateway: {broken}")


async def _batches(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Fewer, larger pieces: each goes to the disk by a thread. What came before a break is not lost."""
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


def _holds(path: Path, hexdigest: str) -> bool:
    try:
        return digest_of(path) == hexdigest
    except OSError:
        return False

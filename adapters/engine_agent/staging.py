"""Caches versions on this host's disk: fetched once, verified by hash, bounded in size.

    root/lock                   held by the agent that uses the cache
    root/<digest hex>/…         the two files of a version; the directory's mtime is its last use
    root/.staging/<random>/…    being fetched or removed

After a start, files are trusted only once they have been hashed again. A version that the engine lists, or
has listed or been given within KEEP_SECONDS, is never removed: on a cache miss vLLM rereads the file in the
middle of a step, and dies if it is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import logging
import os
import secrets
import shutil
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from adapters.checks.validate import FILES
from adapters.engine_agent.artifact_download import ArtifactSource, StageError, download
from adapters.registry.artifacts import digest_of

log = logging.getLogger(__name__)

KEEP_SECONDS = 180.0
"""How long a version is kept after the engine last listed it."""
_STAGING = ".staging"


@dataclass(slots=True)
class CacheEntry:
    size: int
    used: float
    """Time of last use, by the cache's clock; negative, in order, for files left by an earlier agent."""
    verified: bool = False


@dataclass(slots=True)
class Cache:
    """One agent's cache of versions on local disk.

    Invariants: a directory under its digest is complete and verified; the total size, including promised
    downloads, stays within `max_bytes`; nothing that the engine may read is removed. Only the process that
    holds the lock uses the directory. All methods run on one event loop, called by the agent and its server.

    `listed` returns the paths that the engine lists now, or None if it does not respond.
    """

    root: Path
    max_bytes: int
    source: ArtifactSource
    listed: Callable[[], Awaitable[frozenset[str] | None]]
    clock: Callable[[], float] = time.monotonic
    _entries: dict[str, CacheEntry] = field(default_factory=dict)
    _staging_tasks: dict[str, asyncio.Task[Path]] = field(default_factory=dict)
    _coming: dict[str, int] = field(default_factory=dict)
    """Bytes reserved for running downloads."""
    _held: dict[str, float] = field(default_factory=dict)
    """When the engine last listed each version, or was given it."""
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
        """Take the lock and scan the directory. `taken_over`: descriptor of an inherited lock. Blocking.
        Raises StageError, OSError."""
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self.root.stat().st_mode & 0o077:  # customers' weights; the engine runs as this user
            with contextlib.suppress(PermissionError):  # a mount owned by another user
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
                f"Another `florin engine run` uses {self.root}: use a different --cache-dir."
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
        """Return the directory with the version's files, which have `size` bytes together. Concurrent callers
        share one download, which continues even if all of them leave. Raises StageError."""
        hexdigest = digest.removeprefix("sha256:")
        if len(hexdigest) != 64 or set(hexdigest) - set("0123456789abcdef"):
            raise StageError(f"{digest[:80]!r} is not a digest.")
        staging_task = self._staging_tasks.get(hexdigest)
        if staging_task is None:
            staging_task = asyncio.create_task(self._provide(hexdigest, size), name=f"stage {hexdigest[:12]}")
            self._staging_tasks[hexdigest] = staging_task
            staging_task.add_done_callback(lambda task: self._staged(hexdigest, task))
        return await asyncio.shield(staging_task)

    def observe(self, listed: Iterable[str]) -> None:
        """Record that the engine lists these paths now."""
        self._looked = self.clock()
        for path in listed:
            if Path(path).parent == self.root:
                self._held[Path(path).name] = self._looked

    def forget(self) -> None:
        """Record that the engine's process is gone and holds nothing."""
        self._held.clear()

    async def cancel_downloads(self) -> None:
        """Cancel running downloads."""
        staging_tasks = list(self._staging_tasks.values())
        for staging_task in staging_tasks:
            staging_task.cancel()
        await asyncio.gather(*staging_tasks, return_exceptions=True)

    def _staged(self, hexdigest: str, task: asyncio.Task[Path]) -> None:
        del self._staging_tasks[hexdigest]
        self._coming.pop(hexdigest, None)
        if not task.cancelled() and (error := task.exception()):  # also marks the exception as retrieved
            log.warning("Staging %s failed: %s", hexdigest[:12], error)

    async def _provide(self, hexdigest: str, size: int) -> Path:
        path = self.root / hexdigest
        entry = self._entries.get(hexdigest)
        try:
            if entry and not (entry.verified and all((path / name).is_file() for name in FILES)):
                entry.verified = await asyncio.to_thread(_holds, path, hexdigest)
            if entry is None or not entry.verified:
                if entry:
                    log.warning("Staged version %s is damaged; fetching it again", path)
                    await self._remove(hexdigest)
                await self._make_room(hexdigest, size)
                await self._fetch(hexdigest, size)
                entry = self._entries[hexdigest] = CacheEntry(size, self.clock(), verified=True)
                self._coming.pop(hexdigest, None)  # it has arrived and must not count twice
            os.utime(path)
        except OSError as error:
            if error.errno in {errno.ENOSPC, errno.EDQUOT}:
                raise StageError(f"The disk of the adapter cache, {self.root}, is full.") from error
            raise StageError(f"The adapter cache, {self.root}, failed: {error}.") from error
        entry.used = self._held[hexdigest] = self.clock()
        return path

    async def _make_room(self, hexdigest: str, size: int) -> None:
        """Reserve `size` bytes for a download, evicting the least recently used versions."""
        if size > self.max_bytes:
            raise StageError(
                f"The version has {size:,} bytes, more than the adapter cache can hold ({self.max_bytes:,}): "
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
                    f"The adapter cache ({self.max_bytes:,} bytes) is full of versions that the engine holds "
                    f"or held within the last {KEEP_SECONDS / 60:.0f} minutes: raise --cache-size."
                )
            await self._remove(min(free, key=lambda h: self._entries[h].used))

    def _needed(self, hexdigest: str, listed: frozenset[str] | None) -> bool:
        """Whether the engine may still read it. Time during which the engine's list is unknown does not
        count."""
        last_held = self._held.get(hexdigest)
        if last_held is None:
            return False
        return last_held > (self._looked if listed is None else self.clock()) - KEEP_SECONDS

    async def _remove(self, hexdigest: str) -> None:
        """Rename first, so that a crash never leaves an incomplete version under its name."""
        del self._entries[hexdigest]
        pending_deletion = self.root / _STAGING / secrets.token_hex(8)
        with contextlib.suppress(FileNotFoundError):  # already removed by someone else
            (self.root / hexdigest).rename(pending_deletion)
        await asyncio.to_thread(shutil.rmtree, pending_deletion, ignore_errors=True)

    async def _fetch(self, hexdigest: str, size: int) -> None:
        directory = self.root / _STAGING / secrets.token_hex(8)
        directory.mkdir()
        try:
            await download(self.source, hexdigest, size, directory)
            directory.chmod(0o755)
            with contextlib.suppress(FileNotFoundError):  # missing, or an incomplete copy
                (self.root / hexdigest).rename(self.root / _STAGING / secrets.token_hex(8))
            directory.rename(self.root / hexdigest)
        finally:
            await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)


def _holds(path: Path, hexdigest: str) -> bool:
    try:
        return digest_of(path) == hexdigest
    except OSError:
        return False

"""Saves a worker's view of the registry, with its secrets, on this host's disk. See
`adapters.store.local_snapshot`."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from adapters.errors import StoreUnavailableError
from adapters.store import local_snapshot
from adapters.store.feed import Follower
from adapters.store.local_snapshot import LocalSnapshot, LocalSnapshotError
from adapters.store.protocol.coordination import CoordinationStore

log = logging.getLogger(__name__)

SECONDS: Final = 5.0
"""Minimum seconds between two writes."""
PAUSE_FACTOR: Final = 50
"""Minimum pause as a multiple of the last write's duration, so that writing takes at most 2 % of a disk or
CPU."""
CHECK_SECONDS: Final = 0.5

SECRETS: Final = {"agent": 32, "installation": 8, "cache_salt": 32}
"""Secrets that a worker needs at start, and their lengths in bytes."""


def read(directory: Path) -> LocalSnapshot | None:
    """The saved registry to start from. An unusable one is logged and ignored. Blocking."""
    try:
        return local_snapshot.read(directory / local_snapshot.NAME)
    except LocalSnapshotError as error:
        log.error("%s Starting without it.", error)
        return None


async def secrets_of(
    store: CoordinationStore, follower: Follower, saved: LocalSnapshot | None
) -> dict[str, str]:
    """The installation's secrets, from Redis if it holds the registry that we know, otherwise from the saved
    file. Raises StoreUnavailableError if neither has them."""
    known = dict(saved.secrets) if saved else {}
    for name, size in SECRETS.items():
        if not follower.connected and name in known:
            continue
        try:
            known[name] = await store.secret(name, known.get(name) or secrets.token_hex(size))
        except StoreUnavailableError:
            if name not in known:
                raise
    if not follower.position.installation:
        follower.belongs_to(known["installation"])
    return known


class SnapshotWriter:
    """Saves the registry periodically. Each worker runs one; the workers of a host share the file.

    Mutable state: what was written last and when, and the last error.
    """

    def __init__(
        self,
        directory: Path,
        follower: Follower,
        secrets: Mapping[str, str],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.trouble = ""
        """Why saving fails, as a sentence; empty if it works."""
        self._directory = directory
        self._follower = follower
        self._secrets = dict(secrets)
        self._clock = clock
        self._written = (-1, -1, 0)
        self._due = 0.0

    def __repr__(self) -> str:
        return f"<SnapshotWriter of {self._directory}, {self._written}>"

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            if self._stale and (self._clock() >= self._due or not self._follower.connected):
                await self.keep()
            await asyncio.sleep(CHECK_SECONDS)

    async def close(self) -> None:
        if self._stale:
            await self.keep()

    async def keep(self) -> None:
        """Write this worker's view, unless another worker has written a newer one."""
        began = self._clock()
        force = self._follower.rewound != self._written[2]
        current, known = self._current, self.known()
        try:
            await asyncio.to_thread(local_snapshot.write, self._directory, known, force=force)
        except OSError as error:
            if not self.trouble:
                log.error("Saving the registry to %s failed: %s", self._directory, error)
            self.trouble = (
                f"{self._directory / local_snapshot.NAME} cannot be written: {error.strerror or error}."
            )
        else:
            self.trouble, self._written = "", current
        ended = self._clock()
        self._due = ended + max(SECONDS, PAUSE_FACTOR * (ended - began))

    def known(self) -> LocalSnapshot:
        """This worker's current view."""
        documents = {kind: dict(texts) for kind, texts in self._follower.documents.items()}
        return local_snapshot.of(self._follower.position, documents, self._secrets)

    async def newest(self) -> LocalSnapshot:
        """The newest view known to this worker or saved by another worker on this host."""
        own, saved = self.known(), None
        with suppress(LocalSnapshotError):
            saved = await asyncio.to_thread(local_snapshot.read, self._directory / local_snapshot.NAME)
        ours = saved and saved.position.installation == own.position.installation
        return saved if saved and ours and local_snapshot.newer(saved.position, own.position) else own

    @property
    def _current(self) -> tuple[int, int, int]:
        position = self._follower.position
        return (position.epoch, position.seq, self._follower.rewound)

    @property
    def _stale(self) -> bool:
        return self._current != self._written

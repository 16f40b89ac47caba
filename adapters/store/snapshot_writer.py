"""Keeps on this host's disk what a worker knows of the registry, with its secrets: see
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
from adapters.store.protocol import Store

log = logging.getLogger(__name__)

SECONDS: Final = 5.0
"""Between two writings, at least."""
REST: Final = 50
"""Times the last writing's length: keeping takes at most 2 % of a disk and of a processor."""
LOOK_SECONDS: Final = 0.5

SECRETS: Final = {"agent": 32, "installation": 8, "cache_salt": 32}
"""What a worker needs of Redis at its start, and their lengths in bytes."""


def read(directory: Path) -> LocalSnapshot | None:
    """What there is to start from. Blocks. What cannot be used is logged, and passed over."""
    try:
        return local_snapshot.read(directory / local_snapshot.NAME)
    except LocalSnapshotError as error:
        log.error("%s Starting as if there were none.", error)
        return None


async def secrets_of(store: Store, follower: Follower, found: LocalSnapshot | None) -> dict[str, str]:
    """The installation's secrets: those in Redis while that is the registry that we know, else those kept.
    Raises StoreUnavailableError where neither has them."""
    known = dict(found.secrets) if found else {}
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
    """One for each worker; the workers of a host share the file.

    State: what was written last and when, and what went wrong with it.
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
        """Why nothing can be kept, in a sentence; empty: it can."""
        self._directory = directory
        self._follower = follower
        self._secrets = dict(secrets)
        self._clock = clock
        self._written = (-1, -1, 0)
        self._due = 0.0

    def __repr__(self) -> str:
        return f"<SnapshotWriter of {self._directory}, {self._written}>"

    async def run(self) -> None:
        """For ever; cancel to stop."""
        while True:
            if self._stale and (self._clock() >= self._due or not self._follower.connected):
                await self.keep()
            await asyncio.sleep(LOOK_SECONDS)

    async def close(self) -> None:
        if self._stale:
            await self.keep()

    async def keep(self) -> None:
        """Write what this worker knows, unless another has written what is newer."""
        began = self._clock()
        anyway = self._follower.rewound != self._written[2]
        stands, known = self._stands, self.known()
        try:
            await asyncio.to_thread(local_snapshot.write, self._directory, known, anyway=anyway)
        except OSError as error:
            if not self.trouble:
                log.error("The registry cannot be kept in %s: %s", self._directory, error)
            self.trouble = (
                f"{self._directory / local_snapshot.NAME} cannot be written: {error.strerror or error}."
            )
        else:
            self.trouble, self._written = "", stands
        ended = self._clock()
        self._due = ended + max(SECONDS, REST * (ended - began))

    def known(self) -> LocalSnapshot:
        """What this worker knows now."""
        documents = {kind: dict(texts) for kind, texts in self._follower.documents.items()}
        return local_snapshot.of(self._follower.position, documents, self._secrets)

    async def newest(self) -> LocalSnapshot:
        """What this worker, or another of this host, has known last."""
        own, found = self.known(), None
        with suppress(LocalSnapshotError):
            found = await asyncio.to_thread(local_snapshot.read, self._directory / local_snapshot.NAME)
        ours = found and found.position.installation == own.position.installation
        return found if found and ours and local_snapshot.newer(found.position, own.position) else own

    @property
    def _stands(self) -> tuple[int, int, int]:
        position = self._follower.position
        return (position.epoch, position.seq, self._follower.rewound)

    @property
    def _stale(self) -> bool:
        return self._stands != self._written

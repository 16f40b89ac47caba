"""Keeps a worker's in-memory views current: a snapshot, then every later event.

After any disturbance (server unreachable, event missed) the views keep their contents, `connected` is False,
and the follower retries until it can load a fresh snapshot.

A server that has lost changes that the views know (`adapters.store.continuity`) is also a disturbance,
described by `lost`. It lasts until an operator restores the registry or accepts the server's state. If only
ephemeral documents were lost, the follower continues with the server's state.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Final, Protocol

from adapters.errors import RegistryRegressedError, StoreUnavailableError
from adapters.store.continuity import Position, same
from adapters.store.protocol.registry import Event, GapError, RegistryStore, Snapshot

log = logging.getLogger(__name__)

FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 1.0
"""Seconds between reconnection attempts, doubling from the first to the longest, with jitter."""


class View(Protocol):
    """A worker's in-memory state derived from the documents. Its methods neither await nor fail."""

    def load(self, documents: dict[str, dict[str, str]]) -> None:
        """Replace all contents with these documents: kind → id → JSON."""
        ...

    def apply(self, event: Event) -> None: ...


class Follower:
    """Applies snapshots and events to `views`, in order. `start` once, `close` once.

    The views are a function of the event history, so a view at `position` equals every other worker's view at
    that position.

    Invariants: events are applied in sequence, without gaps; after a gap or an outage a full snapshot
    replaces the views. `store.trust` always knows `position`, so the store refuses to change a registry that
    does not continue it. The views never go back, except by `rewound` or an operator's new epoch.

    Only the follower's task writes to the views; anyone on the same event loop may read them between two
    awaits. Mutable state: `position`, `documents`, `connected`, `lost`, the task.
    """

    def __init__(self, store: RegistryStore, views: Sequence[View], kept: Snapshot | None = None) -> None:
        """`kept`: the registry as last saved by a worker on this host, used if the store is unavailable."""
        self._store = store
        self._views = tuple(views)
        self._position = Position()
        self._documents: dict[str, dict[str, str]] = {}
        self._kept = kept
        self._connected = False
        self._lost = ""
        self._rewound = 0
        self._change = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<Follower at event {self.seq}, {'connected' if self._connected else 'cut off'}>"

    @property
    def seq(self) -> int:
        return self._position.seq

    @property
    def position(self) -> Position:
        return self._position

    @property
    def documents(self) -> dict[str, dict[str, str]]:
        """The documents behind the views: kind → id → JSON. Read it between two awaits."""
        return self._documents

    @property
    def lost(self) -> str:
        """While the server holds a different registry from the one the views know: what it lost, as a
        sentence. Otherwise empty. `connected` is False meanwhile."""
        return self._lost

    @property
    def connected(self) -> bool:
        """False if the views may be out of date."""
        return self._connected

    @property
    def rewound(self) -> int:
        """How often the server had lost only ephemeral documents and the views were rewound to its state."""
        return self._rewound

    async def start(self) -> None:
        """Return once the views are loaded. Raises StoreUnavailableError if there is neither a first snapshot
        nor a `kept` one."""
        if self._kept is not None:  # the views get it only if they must: that takes time
            self._documents = self._kept.documents
            self._set_position(self._kept.position)
        try:
            await self._load()
        except StoreUnavailableError as error:
            if self._kept is None:
                raise
            self._replace_views(self._kept)
            self._connected = True  # so that the outage is logged
            self._disconnected(error)
        self._kept = None
        self._task = asyncio.create_task(self._follow(), name="feed")

    def belongs_to(self, installation: str) -> None:
        """Set the id of a registry that had none when it was loaded."""
        self._set_position(replace(self._position, installation=installation))

    async def close(self) -> None:
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._task = None
        self._connected = False
        self._notify()

    async def changed(self) -> None:
        """Wait for the next batch of events, a disconnection or a reconnection. Cheap for many waiters. A
        caller that reads a view and then awaits this, with no await between, misses nothing."""
        await self._change.wait()

    async def wait_for(self, seq: int, timeout: float) -> bool:
        """Wait until the views include event `seq`. False after `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                while self.seq < seq:
                    await self._change.wait()
        except TimeoutError:
            return False
        return True

    async def wait_for_epoch(self, epoch: int, timeout: float) -> bool:
        """Wait until the views have adopted this epoch. False after `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                while self._position.epoch < epoch or not self._connected:
                    await self._change.wait()
        except TimeoutError:
            return False
        return True

    async def _follow(self) -> None:
        pauses = 0
        fresh = self._connected  # start() has just loaded a snapshot
        while True:
            try:
                if not fresh:
                    await self._load()
                fresh = False
                async with aclosing(self._store.watch(self.seq)) as batches:
                    async for batch in batches:
                        pauses = 0
                        self._apply(batch)
            except (StoreUnavailableError, GapError) as error:
                self._disconnected(error)
            except Exception as error:  # never stop following, or the views would stay stale for ever
                log.exception("Change feed failed; reconnecting")
                self._disconnected(error)
            pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0**pauses)
            pauses = min(pauses + 1, 10)
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - jitter is no secret

    async def _load(self) -> None:
        if self._lost:
            _, lost = await self._store.inspect(self._position)
            if lost:
                raise RegistryRegressedError(lost)
        try:
            snapshot = await self._store.snapshot()
        except RegistryRegressedError:
            snapshot = await self._store.snapshot_unchecked()
            if not self._lost_only_ephemeral(snapshot):
                raise
            self._rewound += 1
            log.warning("Redis lost recent changes but no documents; continuing from change %d", snapshot.seq)
        returned = self._task is not None and not self._connected
        self._replace_views(snapshot)
        self._connected, self._lost = True, ""
        if returned:
            log.warning("Redis is reachable again; views are current as of change %d", self.seq)
        self._notify()

    def _lost_only_ephemeral(self, left: Snapshot) -> bool:
        ours = left.position.installation == self._position.installation
        return ours and left.position.epoch == self._position.epoch and same(self._documents, left.documents)

    def _replace_views(self, snapshot: Snapshot) -> None:
        self._documents = snapshot.documents
        for view in self._views:
            view.load(snapshot.documents)
        self._set_position(snapshot.position)

    def _set_position(self, position: Position) -> None:
        self._position = position
        self._store.trust(position)

    def _apply(self, batch: list[Event]) -> None:
        for event in batch:
            for view in self._views:
                try:
                    view.apply(event)
                except Exception:  # one bad document must not block the others
                    log.exception("%r failed to apply %s %s", view, event.kind, event.id)
            texts = self._documents.setdefault(event.kind, {})
            if event.data is None:
                texts.pop(event.id, None)
            else:
                texts[event.id] = event.data
        if batch:
            self._set_position(replace(self._position, seq=batch[-1].seq, mark=batch[-1].mark))
            self._notify()

    def _disconnected(self, error: Exception) -> None:
        lost = str(error) if isinstance(error, RegistryRegressedError) else ""
        if lost and not self._lost:
            log.critical("%s Serving from memory; Redis is not written to. See florin registry show.", lost)
        elif self._connected:
            log.warning("Redis is unavailable; serving from memory: %s", error)
        self._connected = False
        self._lost = lost or self._lost
        self._notify()

    def _notify(self) -> None:
        """Wake everyone who waits now; later callers wait for the next change."""
        self._change.set()
        self._change.clear()

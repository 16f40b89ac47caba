"""Keeps a worker's in-memory views current: a snapshot, then the events after it, for as long as it lives.

After any disturbance (the server away, an event missed) the views keep what they have, `connected` is
False, and the follower tries again until it can load a fresh snapshot.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from contextlib import aclosing
from typing import Final, Protocol

from adapters.errors import StoreUnavailableError
from adapters.store import Event, GapError, Store

log = logging.getLogger(__name__)

FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 1.0
"""Seconds between attempts to come back, doubling from the first to the longest, with jitter."""


class View(Protocol):
    """Something that a worker knows, derived from the documents. Neither method awaits or fails."""

    def load(self, documents: dict[str, dict[str, str]]) -> None:
        """Forget everything and begin with these: kind → id → JSON."""
        ...

    def apply(self, event: Event) -> None: ...


class Follower:
    """Feeds `views`, in their order. `start` once, `close` once.

    State: `seq`, the last event that the views know; `connected`; a task. All on one event loop.
    """

    def __init__(self, store: Store, views: Sequence[View]) -> None:
        self._store = store
        self._views = tuple(views)
        self._seq = 0
        self._connected = False
        self._change = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<Follower at event {self._seq}, {'connected' if self._connected else 'cut off'}>"

    @property
    def seq(self) -> int:
        return self._seq

    @property
    def connected(self) -> bool:
        """False: what the views know may be old."""
        return self._connected

    async def start(self) -> None:
        """Views are loaded when this returns. Raises StoreUnavailableError: without a first snapshot there
        is nothing to go on with."""
        await self._load()
        self._task = asyncio.create_task(self._follow(), name="feed")

    async def close(self) -> None:
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._task = None
        self._connected = False
        self._wake()

    async def changed(self) -> None:
        """Until the next batch of events, loss of the connection, or return. Cheap for many waiters; whoever
        looks at a view and then awaits this without another await between misses nothing."""
        await self._change.wait()

    async def wait_for(self, seq: int, timeout: float) -> bool:
        """Until the views know event `seq`: True. False: not within `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                while self._seq < seq:
                    await self._change.wait()
        except TimeoutError:
            return False
        return True

    async def _follow(self) -> None:
        pauses = 0
        fresh = True  # the snapshot that start() took
        while True:
            try:
                if not fresh:
                    await self._load()
                fresh = False
                async with aclosing(self._store.watch(self._seq)) as batches:
                    async for batch in batches:
                        pauses = 0
                        self._apply(batch)
            except (StoreUnavailableError, GapError) as error:
                self._lose(error)
            except (
                Exception
            ) as error:  # whatever it is, a worker that stops following would serve old truths for ever
                log.exception("the feed stumbled")
                self._lose(error)
            pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0**pauses)
            pauses = min(pauses + 1, 10)
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - jitter is no secret

    async def _load(self) -> None:
        snapshot = await self._store.snapshot()
        for view in self._views:
            view.load(snapshot.documents)
        returned = self._task is not None and not self._connected
        self._seq = snapshot.seq
        self._connected = True
        if returned:
            log.warning("the shared state is back; this worker is current as of event %d", self._seq)
        self._wake()

    def _apply(self, batch: list[Event]) -> None:
        for event in batch:
            for view in self._views:
                try:
                    view.apply(event)
                except Exception:  # one bad document must not stop the feed of all the others
                    log.exception("%r could not apply %s %s", view, event.kind, event.id)
            self._seq = event.seq
        if batch:
            self._wake()

    def _lose(self, error: Exception) -> None:
        if self._connected:
            log.warning("the shared state is out of reach, serving from memory: %s", error)
        self._connected = False
        self._wake()

    def _wake(self) -> None:
        """Whoever waits now goes on; whoever comes later waits for the next time."""
        self._change.set()
        self._change.clear()

"""Keeps a worker's in-memory views current: a snapshot, then the events after it, for as long as it lives.

After any disturbance (the server away, an event missed) the views keep what they have, `connected` is
False, and the follower tries again until it can load a fresh snapshot.

A server that has lost what the views know (`adapters.store.continuity`) is such a disturbance too, with
`lost` as its reason: it lasts until an operator has put the registry back or accepted what there is. Where
only what passes by itself was lost, the follower goes on with what there is.
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
from adapters.store.protocol import Event, GapError, Snapshot, Store

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

    State: what the views know, as `position` and `documents`; `connected`; `lost`; a task. All on one event
    loop.
    """

    def __init__(self, store: Store, views: Sequence[View], kept: Snapshot | None = None) -> None:
        """`kept`: what a worker of this installation knew last."""
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
        """What the views know, as text: kind → id → JSON. To be read between two awaits."""
        return self._documents

    @property
    def lost(self) -> str:
        """What the server has lost, in a sentence, while it holds another registry than the views know;
        else empty. `connected` is False meanwhile."""
        return self._lost

    @property
    def connected(self) -> bool:
        """False: what the views know may be old."""
        return self._connected

    @property
    def rewound(self) -> int:
        """How often the server had lost only what passes by itself, and the views went back to that."""
        return self._rewound

    async def start(self) -> None:
        """Views are loaded when this returns. Raises StoreUnavailableError: without a first snapshot, and
        with nothing kept, there is nothing to go on with."""
        if self._kept is not None:
            self._know(self._kept)
        try:
            await self._load()
        except StoreUnavailableError as error:
            if self._kept is None:
                raise
            self._connected = True  # so that its loss is told
            self._lose(error)
        self._kept = None
        self._task = asyncio.create_task(self._follow(), name="feed")

    def belongs_to(self, installation: str) -> None:
        """The id of the registry that was new when it was loaded."""
        self._stand(replace(self._position, installation=installation))

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
                while self.seq < seq:
                    await self._change.wait()
        except TimeoutError:
            return False
        return True

    async def wait_for_epoch(self, epoch: int, timeout: float) -> bool:
        """Until the views have taken over an operator's decision: True. False: not within so many seconds."""
        try:
            async with asyncio.timeout(timeout):
                while self._position.epoch < epoch or not self._connected:
                    await self._change.wait()
        except TimeoutError:
            return False
        return True

    async def _follow(self) -> None:
        pauses = 0
        fresh = self._connected  # the snapshot that start() took
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
        if self._lost:
            _, lost = await self._store.look(self._position)
            if lost:
                raise RegistryRegressedError(lost)
        try:
            snapshot = await self._store.snapshot()
        except RegistryRegressedError:
            snapshot = await self._store.rest()
            if not self._harmless(snapshot):
                raise
            self._rewound += 1
            log.warning(
                "Redis has lost its last changes, but no document: going on from change %d", snapshot.seq
            )
        returned = self._task is not None and not self._connected
        self._know(snapshot)
        self._connected, self._lost = True, ""
        if returned:
            log.warning("the shared state is back; this worker is current as of event %d", self.seq)
        self._wake()

    def _harmless(self, left: Snapshot) -> bool:
        ours = left.position.installation == self._position.installation
        return ours and left.position.epoch == self._position.epoch and same(self._documents, left.documents)

    def _know(self, snapshot: Snapshot) -> None:
        self._documents = snapshot.documents
        for view in self._views:
            view.load(snapshot.documents)
        self._stand(snapshot.position)

    def _stand(self, position: Position) -> None:
        self._position = position
        self._store.trust(position)

    def _apply(self, batch: list[Event]) -> None:
        for event in batch:
            for view in self._views:
                try:
                    view.apply(event)
                except Exception:  # one bad document must not stop the feed of all the others
                    log.exception("%r could not apply %s %s", view, event.kind, event.id)
            texts = self._documents.setdefault(event.kind, {})
            if event.data is None:
                texts.pop(event.id, None)
            else:
                texts[event.id] = event.data
        if batch:
            self._stand(replace(self._position, seq=batch[-1].seq, mark=batch[-1].mark))
            self._wake()

    def _lose(self, error: Exception) -> None:
        lost = str(error) if isinstance(error, RegistryRegressedError) else ""
        if lost and not self._lost:
            log.critical(
                "%s Serving what this worker knows; nothing is changed there. See florin registry show.", lost
            )
        elif self._connected:
            log.warning("the shared state is out of reach, serving from memory: %s", error)
        self._connected = False
        self._lost = lost or self._lost
        self._wake()

    def _wake(self) -> None:
        """Whoever waits now goes on; whoever comes later waits for the next time."""
        self._change.set()
        self._change.clear()

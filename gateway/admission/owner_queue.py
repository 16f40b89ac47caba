"""A concurrency limit that is fair among owners: so many jobs at a time, so many per owner, the rest in turn.

Owners are served round robin, so an owner's hundredth job delays another owner's first by one job. How many
jobs an owner may queue is bounded, and so is how long a job waits.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


class QueueFullError(Exception):
    """The owner's queue is full."""


class QueueTimeoutError(Exception):
    """The job waited too long, or too many jobs of all owners are queued."""


@dataclass(slots=True)
class _Owner:
    running: int = 0
    waiting: deque[asyncio.Future[None]] = field(default_factory=deque)


class OwnerQueue:
    """One per worker and kind of job. Use it from the worker's event loop only."""

    def __init__(
        self, *, running: int, running_each: int, waiting_each: int, waiting: int, timeout: float
    ) -> None:
        """At most `running` jobs run at a time, `running_each` of one owner; at most `waiting` wait,
        `waiting_each` of one owner, for at most `timeout` seconds."""
        self._max_running = running
        self._max_running_each = running_each
        self._max_waiting_each = waiting_each
        self._max_waiting = waiting
        self._timeout = timeout
        # Mutable: owners in the order of service. One without jobs has no entry.
        self._owners: dict[str, _Owner] = {}
        self.running = 0
        self.waiting = 0

    def __repr__(self) -> str:
        return f"<OwnerQueue {self.running} running, {self.waiting} waiting, {len(self._owners)} owners>"

    @asynccontextmanager
    async def acquire(self, owner: str) -> AsyncGenerator[Permit]:
        """Wait for a permit and release it, at the latest, at the end of the block. Raises QueueFullError,
        QueueTimeoutError."""
        permit = await self._acquire(owner)
        try:
            yield permit
        finally:
            permit.release()

    async def _acquire(self, name: str) -> Permit:
        owner = self._owners.get(name) or _Owner()
        if self.running < self._max_running and owner.running < self._max_running_each and not owner.waiting:
            self._owners[name] = owner
            self._start(owner)
            return Permit(self, name)
        if len(owner.waiting) >= self._max_waiting_each:
            raise QueueFullError
        if self.waiting >= self._max_waiting:
            raise QueueTimeoutError
        self._owners[name] = owner
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        owner.waiting.append(future)
        self.waiting += 1
        try:
            async with asyncio.timeout(self._timeout):
                await future
        except BaseException as error:
            self._give_up(name, owner, future)
            if isinstance(error, TimeoutError):
                raise QueueTimeoutError from None
            raise
        return Permit(self, name)

    def _give_up(self, name: str, owner: _Owner, future: asyncio.Future[None]) -> None:
        """Stop waiting; the permit may have been granted at this very moment."""
        if future in owner.waiting:
            owner.waiting.remove(future)
            self.waiting -= 1
        if future.cancelled():
            self._forget_if_idle(name, owner)
        else:
            self._release(name)

    def _start(self, owner: _Owner) -> None:
        owner.running += 1
        self.running += 1

    def _release(self, name: str) -> None:
        owner = self._owners[name] = self._owners.pop(name)  # this owner is served last from now on
        owner.running -= 1
        self.running -= 1
        self._forget_if_idle(name, owner)
        self._grant()

    def _forget_if_idle(self, name: str, owner: _Owner) -> None:
        if not owner.running and not owner.waiting:
            self._owners.pop(name, None)

    def _grant(self) -> None:
        """Start waiting jobs while the limits allow it, one owner after the other."""
        while self.running < self._max_running:
            able = (n for n, o in self._owners.items() if o.waiting and o.running < self._max_running_each)
            name = next(able, None)
            if name is None:
                return
            owner = self._owners[name]
            self.waiting -= 1
            future = owner.waiting.popleft()
            if not future.cancelled():  # its task will notice only later
                self._owners[name] = self._owners.pop(name)
                self._start(owner)
                future.set_result(None)


class Permit:
    """Allows one job to run. `release` is idempotent."""

    __slots__ = ("_name", "_queue")

    def __init__(self, queue: OwnerQueue, name: str) -> None:
        self._queue: OwnerQueue | None = queue
        self._name = name

    def release(self) -> None:
        queue, self._queue = self._queue, None
        if queue is not None:
            queue._release(self._name)  # noqa: SLF001  # the two are one

"""One task for all who want the same thing at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


@dataclass(slots=True)
class _Flight(Generic[T]):
    task: asyncio.Task[T]
    deadline: float
    """The latest of its waiters' deadlines."""
    waiters: int = 0


class SingleFlight(Generic[K, T]):
    """Tasks in flight, by key. A task outlives waiters that give up; it asks `wanted` whether to go on."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._flights: dict[K, _Flight[T]] = {}

    def __repr__(self) -> str:
        return f"<SingleFlight {list(self._flights)}>"

    async def join(self, key: K, start: Callable[[], Coroutine[None, None, T]], deadline: float) -> T:
        """The result of the task of this key, started now if there is none. Raises TimeoutError."""
        flight = self._flights.get(key)
        if flight is None or flight.task.done():
            task = asyncio.create_task(start(), name=f"load {key}")
            flight = self._flights[key] = _Flight(task, deadline)
            task.add_done_callback(lambda done: self._done(key, done))
        flight.deadline = max(flight.deadline, deadline)
        flight.waiters += 1
        try:
            async with asyncio.timeout(max(0.0, deadline - self._clock())):
                return await asyncio.shield(flight.task)
        finally:
            flight.waiters -= 1

    def wanted(self, key: K) -> bool:
        """Whether anyone still waits, and has time left."""
        flight = self._flights[key]
        return flight.waiters > 0 and self._clock() <= flight.deadline

    async def close(self) -> None:
        """Cancel all tasks."""
        tasks = [flight.task for flight in self._flights.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _done(self, key: K, task: asyncio.Task[T]) -> None:
        flight = self._flights.get(key)
        if flight is not None and flight.task is task:
            del self._flights[key]
        if not task.cancelled():
            task.exception()  # reading it avoids asyncio's "never retrieved" warning

"""Work that many ask for and few may run: so many at once, so many of one owner, and the rest in turn.

Who waits is served round robin by owner, so that an owner's hundredth question delays another owner's first
by one turn. What an owner may have waiting is bounded, and so is how long it waits.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


class QueueFullError(Exception):
    """The owner has as many waiting as it may."""


class NoTurnError(Exception):
    """No turn came in time, or too many of all owners wait."""


@dataclass(slots=True)
class _Owner:
    running: int = 0
    waiting: deque[asyncio.Future[None]] = field(default_factory=deque)


class Turns:
    """One per worker and kind of work, used from its event loop only."""

    def __init__(
        self, *, running: int, each: int, waiting: int, waiting_in_all: int, patience: float
    ) -> None:
        """At most `running` at once, `each` of one owner; at most `waiting` of one owner and `waiting_in_all`
        wait, for at most `patience` seconds."""
        self._most_running = running
        self._most_each = each
        self._most_waiting = waiting
        self._most_in_all = waiting_in_all
        self._patience = patience
        # Mutable: owners in the order of their turns. One of whom nothing runs or waits has no entry.
        self._owners: dict[str, _Owner] = {}
        self.running = 0
        self.waiting = 0

    def __repr__(self) -> str:
        return f"<Turns {self.running} running, {self.waiting} waiting, {len(self._owners)} owners>"

    @asynccontextmanager
    async def take(self, owner: str) -> AsyncGenerator[Turn]:
        """Waits for a turn, and ends it at the latest with the block. Raises QueueFullError, NoTurnError."""
        turn = await self._begin(owner)
        try:
            yield turn
        finally:
            turn.end()

    async def _begin(self, name: str) -> Turn:
        owner = self._owners.get(name) or _Owner()
        if self.running < self._most_running and owner.running < self._most_each and not owner.waiting:
            self._owners[name] = owner
            self._start(owner)
            return Turn(self, name)
        if len(owner.waiting) >= self._most_waiting:
            raise QueueFullError
        if self.waiting >= self._most_in_all:
            raise NoTurnError
        self._owners[name] = owner
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        owner.waiting.append(future)
        self.waiting += 1
        try:
            async with asyncio.timeout(self._patience):
                await future
        except BaseException as error:
            self._give_up(name, owner, future)
            if isinstance(error, TimeoutError):
                raise NoTurnError from None
            raise
        return Turn(self, name)

    def _give_up(self, name: str, owner: _Owner, future: asyncio.Future[None]) -> None:
        """The turn may have come in the very moment."""
        if future in owner.waiting:
            owner.waiting.remove(future)
            self.waiting -= 1
        if future.cancelled():
            self._tidy(name, owner)
        else:
            self._end(name)

    def _start(self, owner: _Owner) -> None:
        owner.running += 1
        self.running += 1

    def _end(self, name: str) -> None:
        owner = self._owners[name] = self._owners.pop(name)  # who has just had a turn is the last
        owner.running -= 1
        self.running -= 1
        self._tidy(name, owner)
        self._hand_on()

    def _tidy(self, name: str, owner: _Owner) -> None:
        if not owner.running and not owner.waiting:
            self._owners.pop(name, None)

    def _hand_on(self) -> None:
        """Whoever may run, does: owners in their order, and each that had its turn goes to the end."""
        while self.running < self._most_running:
            able = (n for n, o in self._owners.items() if o.waiting and o.running < self._most_each)
            name = next(able, None)
            if name is None:
                return
            owner = self._owners[name]
            self.waiting -= 1
            future = owner.waiting.popleft()
            if not future.cancelled():  # its task will hear of that only later
                self._owners[name] = self._owners.pop(name)
                self._start(owner)
                future.set_result(None)


class Turn:
    """`end` may be called any number of times and counts once."""

    __slots__ = ("_name", "_turns")

    def __init__(self, turns: Turns, name: str) -> None:
        self._turns: Turns | None = turns
        self._name = name

    def end(self) -> None:
        turns, self._turns = self._turns, None
        if turns is not None:
            turns._end(self._name)  # noqa: SLF001  # the two are one

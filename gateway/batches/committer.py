"""Stores the results of one batch, those that arrive at the same time in one transaction."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from gateway.batches.results import Result, Stored
from gateway.batches.threads import InThread
from gateway.metering.ledger.database import LedgerUnavailableError

log = logging.getLogger(__name__)

MOST: Final = 64
"""Results in one transaction."""
MOST_BYTES: Final = 8 * 1024 * 1024
"""Bytes from which on no more results are added to a transaction."""
_PAUSES: Final = (0.2, 0.5, 1.0, 2.0)
"""Seconds between attempts while the database is away; the last repeats."""


class ClosedError(Exception):
    """The worker stops, and the database is away."""


Group = list[tuple[Result, asyncio.Future[Stored]]]


class Committer:
    """On the worker's event loop. `write` stores in a thread."""

    def __init__(self, write: Callable[[Sequence[Result]], Stored], in_thread: InThread) -> None:
        self._write = write
        self._in_thread = in_thread
        # Mutable:
        self._pending: deque[tuple[Result, asyncio.Future[Stored]]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    async def store(self, result: Result) -> Stored:
        """Store a result, however long the database is away. Raises ClosedError after `close`."""
        future: asyncio.Future[Stored] = asyncio.get_running_loop().create_future()
        self._pending.append((result, future))
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        return await future

    def close(self) -> None:
        """Do not wait for the database any longer."""
        self._closed = True

    async def _run(self) -> None:
        try:
            while self._pending:
                group = self._take()
                try:
                    stored = await self._stored([result for result, _ in group])
                except ClosedError as error:
                    _fail(group, error)
                    continue
                except Exception as error:  # a defect, for those who wait
                    log.exception("Batches: results could not be stored")
                    _fail(group, error)
                    continue
                for _, future in group:
                    if not future.done():
                        future.set_result(stored)
        finally:
            self._task = None

    def _take(self) -> Group:
        group: Group = []
        size = 0
        while self._pending and len(group) < MOST and size < MOST_BYTES:
            group.append(self._pending.popleft())
            size += len(group[-1][0].body)
        return group

    async def _stored(self, group: Sequence[Result]) -> Stored:
        tries = 0
        while True:
            try:
                return await self._in_thread(self._write, group)
            except LedgerUnavailableError as error:
                if self._closed:
                    raise ClosedError from error
                if not tries:
                    log.warning("Batches: results wait for the ledger: %s", error)
                await asyncio.sleep(_PAUSES[min(tries, len(_PAUSES) - 1)])
                tries += 1


def _fail(group: Group, error: Exception) -> None:
    for _, future in group:
        if not future.done():
            future.set_exception(error)

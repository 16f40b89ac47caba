"""Answers the lines of one batch, as many at a time as the worker and the tenant's limits allow."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import AsyncIterator, Callable, Container
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import orjson

from gateway.batches.batch_store import BatchStore
from gateway.batches.committer import ClosedError, Committer
from gateway.batches.documents import Batch
from gateway.batches.file_store import FileStore
from gateway.batches.line_transport import LineTransport
from gateway.batches.lines import Line, answered, read_line
from gateway.batches.results import Result
from gateway.batches.retries import Verdict, decide
from gateway.batches.threads import InThread
from gateway.config import Settings
from gateway.dataplane.exchange import BatchLine, Exchange
from gateway.dialects.endpoints import ENDPOINTS
from gateway.errors import CODES
from gateway.lifecycle import Lifecycle
from gateway.metering.held_finals import HeldFinals
from gateway.observability.metrics import Metrics

log = logging.getLogger(__name__)

_OVERLOADED: Final = 0.25
"""Seconds that a line waits for an overloaded worker."""
_FULL: Final = 0.05
"""Seconds between looks whether the tenant's limits allow another line."""


_MOST_BYTES: Final = 32 * 1024 * 1024
"""Bytes of lines that one batch has in flight, beyond the first."""


@dataclass(frozen=True, slots=True)
class RunContext:
    """What every batch of a worker runs with."""

    worker: str
    lifecycle: Lifecycle
    files: FileStore
    batches: BatchStore
    metrics: Metrics
    clock: Callable[[], int]
    """Unix microseconds."""
    settings: Callable[[], Settings]
    concurrency: Callable[[], int]
    """Lines that one batch may have in flight now."""
    in_thread: InThread
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by the line that is about to be parsed: one in an iteration of the loop, over all batches."""


@dataclass(slots=True, eq=False)
class Running:
    """A line that is being answered."""

    exchange: Exchange
    transport: LineTransport


class LineRun:
    """Mutable; on the worker's event loop."""

    def __init__(
        self, batch: Batch, context: RunContext, committer: Committer, *, lost: Callable[[], None]
    ) -> None:
        """`lost`: called if the batch is no longer this worker's, or a line fails because of a defect."""
        self.batch = batch
        self.context = context
        self._committer = committer
        self._lost = lost
        self.running: dict[int, Running] = {}
        """Line → its request."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._bytes = 0
        """Bytes of the lines in flight."""
        self._wake = asyncio.Event()
        self._stopped = False
        self._resume_at = 0.0
        """Loop time until which no line is sent."""
        self._most = math.inf
        """Lines that the tenant's limits allow at a time: as many as ran at the last refusal, and slowly
        more."""

    async def answer(self, lines: AsyncIterator[tuple[int, bytes]], done: Container[int]) -> None:
        """Answer these lines, except those of `done`, until all are answered or `stop` is called."""
        try:
            async for number, raw in lines:
                if number in done:
                    continue
                while self._tasks and not self._stopped and self._full(len(raw)):
                    await asyncio.wait([*self._tasks], return_when=asyncio.FIRST_COMPLETED)
                if self._stopped:
                    break
                task = asyncio.create_task(self._line(read_line(number, raw, self.batch.endpoint)))
                self._tasks.add(task)
                self._bytes += len(raw)
                task.add_done_callback(partial(self._ended, len(raw)))
        finally:
            while self._tasks:
                await asyncio.wait([*self._tasks])

    def stop(self) -> None:
        """Send no more lines, and abort those in flight."""
        self._stopped = True
        self._wake.set()
        for running in list(self.running.values()):
            running.transport.leave()

    def close(self) -> None:
        """The same, and store no more results."""
        self._committer.close()
        self.stop()

    async def ended(self) -> None:
        """Wait until no line is in flight."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _full(self, size: int) -> bool:
        """Whether a line of so many bytes must wait for those in flight."""
        return len(self._tasks) >= self.context.concurrency() or self._bytes + size > _MOST_BYTES

    def _ended(self, size: int, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._bytes -= size
        if not task.cancelled() and task.exception() is not None:
            log.error("Batch %s: a line failed", self.batch.id, exc_info=task.exception())
            self._lost()  # a defect: another worker, or this one, begins again from the results

    async def _line(self, line: Line) -> None:
        """Answer one line, unless the batch stops."""
        failures = waits = 0
        while not self._stopped:
            if not await self._may_send():
                continue
            async with self.context.turn:  # many lines may begin at once, as after a pause
                await asyncio.sleep(0)
            finals = HeldFinals()
            try:
                transport, exchange = await self._attempt(line, finals)
                if not transport.status or (transport.left and transport.status >= 300):
                    if not self._stopped:
                        self.context.metrics.batch_line("preempted")
                    continue
                decision = decide(
                    _status(transport, exchange),
                    exchange.context.error,
                    transport.retry_after,
                    failures=failures,
                    waits=waits,
                )
                if decision.verdict is Verdict.AGAIN:
                    waits += decision.waits
                    failures += not decision.waits
                    if decision.everyone:
                        self._most = max(1.0, len(self.running))
                        self._resume_at = max(
                            self._resume_at, asyncio.get_running_loop().time() + decision.pause
                        )
                    await self._pause(decision.pause)
                    continue
                failed = decision.verdict is Verdict.REFUSED
                body = answered(self.batch.id, line, transport.status, exchange.request_id, transport.body)
                record = None if failed else finals.record
                if await self._stored(Result(line.number, failed, body, record), finals):
                    return
            finally:
                finals.release(delivered=False)

    async def _may_send(self) -> bool:
        """Whether a line may be sent now; else a moment has passed."""
        left = self._resume_at - asyncio.get_running_loop().time()
        if self.context.lifecycle.loop_watch.overloaded:
            left = max(left, _OVERLOADED)
        if len(self.running) >= self._most:
            left = max(left, _FULL)
        if left > 0:
            await self._pause(left)
            return False
        return True

    async def _attempt(self, line: Line, finals: HeldFinals) -> tuple[LineTransport, Exchange]:
        """Through the same steps as a client's request."""
        endpoint, lifecycle = ENDPOINTS[self.batch.endpoint], self.context.lifecycle
        transport = LineTransport(endpoint.path, orjson.dumps(line.body))
        exchange = Exchange(transport, BatchLine(self.batch.key_id, finals))
        exchange.introduce()
        self.running[line.number] = Running(exchange, transport)
        try:
            await lifecycle.run(exchange, endpoint)
        finally:
            del self.running[line.number]
            lifecycle.activity.note(exchange.context)
        return transport, exchange

    async def _stored(self, result: Result, finals: HeldFinals) -> bool:
        """Store a line's answer. Returns whether it has a result now, or is no longer this worker's."""
        try:
            stored = await self._committer.store(result)
        except ClosedError:
            return True
        delivered = result.line in stored.delivered
        finals.release(delivered=delivered and result.record is not None)
        if delivered:
            self._most += 1 / self._most
            self.context.metrics.batch_line("failed" if result.failed else "completed")
        if not stored.owned:
            self._lost()
        return result.line in stored.delivered | stored.answered or not stored.owned

    async def _pause(self, seconds: float) -> None:
        """Wait, but not longer than the batch goes on."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()


def _status(transport: LineTransport, exchange: Exchange) -> int:
    """HTTP status as OpenAI's API has it: dialects have others for overload."""
    known = CODES.get(exchange.context.error)
    return transport.status if known is None or known.status != 503 else 503

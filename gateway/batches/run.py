"""One batch on the worker that holds its lease: validates it, runs its lines, and ends it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import orjson

from gateway.batches.batch_store import BatchStore, LeaseLostError
from gateway.batches.committer import ClosedError, Committer
from gateway.batches.documents import Batch, File, Owner, Status
from gateway.batches.file_store import FileStore
from gateway.batches.line_transport import LineTransport
from gateway.batches.lines import BadLineError, Line, LineError, LineSplitter, answered, not_run, read_line
from gateway.batches.results import Result, Stored
from gateway.batches.retries import Verdict, decide
from gateway.batches.threads import InThread
from gateway.batches.validation import Validation
from gateway.config import Settings
from gateway.dataplane.exchange import BatchLine, Exchange
from gateway.dialects.endpoints import ENDPOINTS
from gateway.errors import CODES, FlorinError
from gateway.lifecycle import Lifecycle
from gateway.metering.held_finals import HeldFinals
from gateway.metering.ledger.database import LedgerUnavailableError
from gateway.observability.metrics import Metrics

log = logging.getLogger(__name__)

DAY: Final = 24 * 3600 * 1_000_000
_AGAIN: Final = 1.0
"""Seconds until the next attempt, when the database was away or the batch has changed."""
_AROUND_BODY: Final = 16 * 1024
"""Bytes of a line besides the body of its request."""
_OVERLOADED: Final = 0.25
"""Seconds that a line waits for an overloaded worker."""
_FULL: Final = 0.05
"""Seconds between looks whether the tenant's limits allow another line."""
_NOT_RUN: Final = 64
"""Lines that are stored at a time as never run."""


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


@dataclass(slots=True, eq=False)
class Running:
    """A line that is being answered."""

    exchange: Exchange
    transport: LineTransport


@dataclass(slots=True, eq=False)
class BatchRun:
    """Mutable; on the worker's event loop. `run` returns when the batch has ended or is no longer this
    worker's. `heard` brings the batch as it is in the database."""

    batch: Batch
    context: RunContext
    running: dict[int, Running] = field(default_factory=dict)
    """Line → its request."""
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _resume_at: float = 0.0
    """Loop time until which no line is sent."""
    _most: float = math.inf
    """Lines that the tenant's limits allow at a time: as many as ran at the last refusal, and slowly more."""
    _verdict: Status | None = None
    """How the batch ends before all of its lines are answered."""
    _lost: bool = False
    """It is no longer this worker's, or this worker stops."""
    _committer: Committer = field(init=False)

    def __post_init__(self) -> None:
        self._committer = Committer(self._store, self.context.in_thread)

    def __repr__(self) -> str:
        return f"<BatchRun {self.batch.id} {self.batch.status} {len(self.running)} running>"

    async def run(self) -> None:
        while not self._lost:
            try:
                await self._step()
            except LeaseLostError:  # or it was cancelled meanwhile
                await self._refresh()
            except LedgerUnavailableError as error:
                log.warning("Batch %s waits for the ledger: %s", self.batch.id, error)
                await self._refresh()
            if self.batch.ended_at is not None:
                return

    def heard(self, batch: Batch | None) -> None:
        """The batch as it is now; None: it is no longer this worker's."""
        if batch is None:
            self.stop()
        elif batch.status == Status.CANCELLING:
            self._end_early(Status.CANCELLED)
        elif self.context.clock() >= batch.expires_at:
            self._end_early(Status.EXPIRED)

    def stop(self) -> None:
        """Give the batch up: its lines in flight are not answered here."""
        self._lost = True
        self._committer.close()
        self._leave()

    async def close(self) -> None:
        self.stop()
        if self._tasks:
            await asyncio.wait(self._tasks)

    # -- from one status to the next

    async def _step(self) -> None:
        batch, now = self.batch, self.context.clock()
        self.heard(batch)  # it may have been cancelled or have expired while nobody ran it
        if batch.status == Status.VALIDATING and self._verdict is None:
            await self._validate()
        elif batch.in_progress_at is None:
            await self._end(self._verdict or Status.CANCELLED)
        elif batch.status == Status.FINALIZING:
            await self._end(Status.COMPLETED)
        elif await self._answer_lines():
            verdict = self._verdict
            if verdict is None:
                self.batch = await self.context.in_thread(
                    self.context.batches.finalize, self.context.worker, batch.id, now
                )
            else:
                await self._give_up_lines(verdict)
                await self._end(verdict)

    async def _end(self, status: Status) -> None:
        context, now = self.context, self.context.clock()
        keep = context.settings().file_retention_days * DAY
        self.batch = await self.context.in_thread(
            context.batches.end, context.worker, self.batch, status, now, keep=keep
        )
        context.metrics.batch_ended(status.value)
        log.info("Batch %s: %s.", self.batch.id, status.value)

    async def _refresh(self) -> None:
        """Read the batch again: something has changed, or may have been written."""
        await asyncio.sleep(_AGAIN)
        try:
            found = await self.context.in_thread(self.context.batches.find, self.batch.id)
        except LedgerUnavailableError:
            return
        if found is None or found.owner != self.context.worker:
            self.stop()
        else:
            self.batch = found

    # -- validating

    async def _validate(self) -> None:
        context, batch = self.context, self.batch
        settings = context.settings()
        validation = Validation(
            batch.endpoint, most_lines=settings.batch_max_lines, check_model=self._check_model
        )
        try:
            async for number, raw in self._lines():
                validation.add(number, raw)
                if validation.full or self._lost or self._verdict:
                    break
        except BadLineError as bad:
            validation.errors.append(bad.error)
        if self._lost or self._verdict:
            return
        errors, now = validation.end(), context.clock()
        if errors:
            self.batch = await self.context.in_thread(
                context.batches.fail, context.worker, batch.id, errors, now
            )
            context.metrics.batch_ended(Status.FAILED.value)
            log.info("Batch %s: failed: %s", batch.id, errors[0].message)
            return
        self.batch = await self.context.in_thread(
            context.batches.start,
            context.worker,
            batch.id,
            total=validation.total,
            model=validation.model,
            now=now,
        )

    def _check_model(self, model: str) -> LineError | None:
        lifecycle = self.context.lifecycle
        key = lifecycle.directory.batch_key(self.batch.key_id)
        if key is None:
            return LineError("invalid_api_key", "The API key that created the batch no longer exists.")
        try:
            lifecycle.resolve(key, model)
        except FlorinError as error:
            return LineError(error.code, error.message)
        return None

    async def _lines(self) -> AsyncIterator[tuple[int, bytes]]:
        """The lines of the input file. Raises BadLineError for one that is too long."""
        context, batch = self.context, self.batch
        owner = Owner(batch.tenant, batch.tenant_since)
        file: File | None = await self.context.in_thread(context.files.get, owner, batch.input_file)
        if file is None:  # a batch that has not ended keeps it
            raise LeaseLostError
        splitter = LineSplitter(context.settings().max_body_bytes + _AROUND_BODY)
        parts = context.files.parts(file)
        while (part := await self.context.in_thread(next, parts, None)) is not None:
            for found in splitter.feed(part):
                yield found
        for found in splitter.end():
            yield found

    # -- the lines

    async def _answer_lines(self) -> bool:
        """Answer every line that has no result. Returns False if the batch was lost."""
        done: set[int] = await self.context.in_thread(self.context.batches.done_lines, self.batch.id)
        try:
            async for number, raw in self._lines():
                if number in done:
                    continue
                while len(self._tasks) >= self.context.concurrency() and not self._stopped:
                    await asyncio.wait([*self._tasks], return_when=asyncio.FIRST_COMPLETED)
                if self._stopped:
                    break
                task = asyncio.create_task(self._line(read_line(number, raw, self.batch.endpoint)))
                self._tasks.add(task)
                task.add_done_callback(self._ended)
        finally:
            while self._tasks:
                await asyncio.wait([*self._tasks])
        return not self._lost

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("Batch %s: a line failed", self.batch.id, exc_info=task.exception())
            self.stop()  # a defect: another worker, or this one, begins again from the results

    async def _line(self, line: Line) -> None:
        """Answer one line, unless the batch stops."""
        failures = waits = 0
        while not self._stopped:
            if not await self._may_send():
                continue
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
            self.stop()
        return result.line in stored.delivered | stored.answered or not stored.owned

    async def _give_up_lines(self, verdict: Status) -> None:
        """Store for each line without a result that it was not run."""
        code = "batch_cancelled" if verdict is Status.CANCELLED else "batch_expired"
        done: set[int] = await self.context.in_thread(self.context.batches.done_lines, self.batch.id)
        found: list[Result] = []
        async for number, raw in self._lines():
            if number in done:
                continue
            line = read_line(number, raw, self.batch.endpoint)
            found.append(Result(number, True, not_run(self.batch.id, line, code)))  # failed
            if len(found) == _NOT_RUN:
                await self._store_unrun(found)
                found = []
        await self._store_unrun(found)

    async def _store_unrun(self, found: list[Result]) -> None:
        if found and not (await self.context.in_thread(self._store, found)).owned:
            raise LeaseLostError

    def _store(self, found: Sequence[Result]) -> Stored:
        context = self.context
        return context.batches.store(context.worker, self.batch.id, found, context.clock())

    # -- waiting and stopping

    @property
    def _stopped(self) -> bool:
        return self._lost or self._verdict is not None

    def _end_early(self, verdict: Status) -> None:
        if self._verdict is None and self.batch.status != Status.FINALIZING:
            self._verdict = verdict
            self._leave()

    def _leave(self) -> None:
        self._wake.set()
        for running in list(self.running.values()):
            running.transport.leave()

    async def _pause(self, seconds: float) -> None:
        """Wait, but not longer than the batch goes on."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()


def _status(transport: LineTransport, exchange: Exchange) -> int:
    """HTTP status as OpenAI's API has it: dialects have others for overload."""
    known = CODES.get(exchange.context.error)
    return transport.status if known is None or known.status != 503 else 503

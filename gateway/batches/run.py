"""One batch on the worker that holds its lease: validates it, runs its lines, and ends it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from gateway.batches.batch_store import LeaseLostError
from gateway.batches.committer import Committer
from gateway.batches.documents import Batch, BatchStatus, File, Owner
from gateway.batches.line_run import LineRun, RunContext
from gateway.batches.lines import BadLineError, LineError, LineSplitter, not_run, read_line
from gateway.batches.results import Result, Stored
from gateway.batches.validation import Validation
from gateway.errors import FlorinError
from gateway.metering.ledger.database import LedgerUnavailableError
from gateway.units import DAY

log = logging.getLogger(__name__)

_AGAIN: Final = 1.0
"""Seconds until the next attempt, when the database was away or the batch has changed."""
_AROUND_BODY: Final = 16 * 1024
"""Bytes of a line besides the body of its request."""
_NOT_RUN: Final = 64
"""Lines that are stored at a time as never run."""
MOST_LAPSES: Final = 2
"""Workers that may stop responding while they run a batch, without an answer to any of its lines in between.
Then its lines are more likely than the workers to be the reason, and a third would be lost, too."""
_CODES: Final = {
    BatchStatus.CANCELLED: "batch_cancelled",
    BatchStatus.EXPIRED: "batch_expired",
    BatchStatus.FAILED: "batch_failed",
}
"""How a batch ends before all of its lines are answered → the code of the other lines."""
_WORKERS_LOST: Final = LineError(
    "workers_lost",
    f"{MOST_LAPSES} workers in a row stopped responding while they ran this batch, before any of its lines "
    "was answered. Split its lines among several batches to find those that cause it.",
)


@dataclass(slots=True, eq=False)
class BatchRun:
    """Mutable; on the worker's event loop. `run` returns when the batch has ended or is no longer this
    worker's. `heard` brings the batch as it is in the database."""

    batch: Batch
    context: RunContext
    _verdict: BatchStatus | None = None
    """How the batch ends before all of its lines are answered."""
    _lost: bool = False
    """It is no longer this worker's, or this worker stops."""
    lines: LineRun = field(init=False)

    def __post_init__(self) -> None:
        committer = Committer(self._store, self.context.in_thread)
        self.lines = LineRun(self.batch, self.context, committer, lost=self.stop)

    def __repr__(self) -> str:
        return f"<BatchRun {self.batch.id} {self.batch.status} {len(self.lines.running)} running>"

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
        elif batch.status == BatchStatus.CANCELLING:
            self._end_early(BatchStatus.CANCELLED)
        elif self.context.clock() >= batch.expires_at:
            self._end_early(BatchStatus.EXPIRED)

    def stop(self) -> None:
        """Give the batch up: its lines in flight are not answered here."""
        self._lost = True
        self.lines.close()

    async def close(self) -> None:
        self.stop()
        await self.lines.ended()

    # -- from one status to the next

    async def _step(self) -> None:
        batch, now = self.batch, self.context.clock()
        self.heard(batch)  # it may have been cancelled or have expired while nobody ran it
        if batch.lapses >= MOST_LAPSES:
            self._end_early(BatchStatus.FAILED)
        if batch.status == BatchStatus.VALIDATING and self._verdict is None:
            await self._validate()
        elif batch.in_progress_at is None:
            await self._end(self._verdict or BatchStatus.CANCELLED)
        elif batch.status == BatchStatus.FINALIZING:
            await self._end(BatchStatus.COMPLETED)
        elif await self._answer_lines():
            verdict = self._verdict
            if verdict is None:
                self.batch = await self.context.in_thread(
                    self.context.batches.finalize, self.context.worker, batch.id, now
                )
            else:
                await self._give_up_lines(verdict)
                await self._end(verdict)

    async def _end(self, status: BatchStatus) -> None:
        context, now = self.context, self.context.clock()
        keep = context.settings().file_retention_days * DAY
        self.batch = await self.context.in_thread(
            context.batches.end,
            context.worker,
            self.batch,
            status,
            now,
            keep=keep,
            errors=[_WORKERS_LOST] if status is BatchStatus.FAILED else [],
        )
        context.metrics.batch_ended(status.value)
        log.info("Batch %s: %s.", self.batch.id, status.value)

    async def _refresh(self) -> None:
        """Read the batch again: something has changed, or may have been written."""
        await asyncio.sleep(_AGAIN)
        try:
            batch = await self.context.in_thread(self.context.batches.find, self.batch.id)
        except LedgerUnavailableError:
            return
        if batch is None or batch.owner != self.context.worker:
            self.stop()
        else:
            self.batch = batch

    # -- validating

    async def _validate(self) -> None:
        context, batch = self.context, self.batch
        settings = context.settings()
        validation = Validation(
            batch.endpoint,
            most_lines=settings.batch_max_lines,
            complexity=context.lifecycle.complexity,
            check_model=self._check_model,
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
            context.metrics.batch_ended(BatchStatus.FAILED.value)
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
            lifecycle.plans.resolve(key, model)
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
            for line in splitter.feed(part):
                yield line
        for line in splitter.end():
            yield line

    # -- the lines

    async def _answer_lines(self) -> bool:
        """Answer every line that has no result. Returns False if the batch was lost."""
        done: set[int] = await self.context.in_thread(self.context.batches.done_lines, self.batch.id)
        await self.lines.answer(self._lines(), done)
        return not self._lost

    async def _give_up_lines(self, verdict: BatchStatus) -> None:
        """Store for each line without a result that it was not run."""
        code = _CODES[verdict]
        done: set[int] = await self.context.in_thread(self.context.batches.done_lines, self.batch.id)
        unrun: list[Result] = []
        async for number, raw in self._lines():
            if number in done:
                continue
            line = read_line(number, raw, self.batch.endpoint)
            unrun.append(Result(number, True, not_run(self.batch.id, line, code)))  # failed
            if len(unrun) == _NOT_RUN:
                await self._store_unrun(unrun)
                unrun = []
        await self._store_unrun(unrun)

    async def _store_unrun(self, unrun: list[Result]) -> None:
        if unrun and not (await self.context.in_thread(self._store, unrun)).owned:
            raise LeaseLostError

    def _store(self, line_results: Sequence[Result]) -> Stored:
        context = self.context
        return context.batches.store(context.worker, self.batch.id, line_results, context.clock())

    def _end_early(self, verdict: BatchStatus) -> None:
        if self._verdict is None and self.batch.status != BatchStatus.FINALIZING:
            self._verdict = verdict
            self.lines.stop()

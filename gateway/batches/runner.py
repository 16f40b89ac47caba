"""Runs batches on one worker: leases them, renews the leases, and gives seats back to those who wait."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from typing import Final

from gateway.batches.batch_store import BatchStore
from gateway.batches.documents import SECOND, Batch
from gateway.batches.file_store import FileStore
from gateway.batches.line_run import RunContext, Running
from gateway.batches.run import BatchRun
from gateway.batches.threads import Threads
from gateway.config import Settings
from gateway.lifecycle import Lifecycle
from gateway.metering.ledger.database import LedgerUnavailableError
from gateway.metering.ledger.ledger import Ledger
from gateway.observability.conditions import Condition
from gateway.routing.pool import Pool
from gateway.units import DAY

log = logging.getLogger(__name__)

POLL_SECONDS: Final = 2.0
"""Between looks for batches, and at those that run here."""
UPKEEP_SECONDS: Final = 60.0
MOST_RUNS: Final = 32
"""Batches that one worker runs at a time."""
MOST_RUNS_OF_TENANT: Final = 4
STUCK_SECONDS: Final = 1800


class BatchRunner:
    """One worker's. `run` is a background task; `close` ends what it has started. On the worker's event loop
    only."""

    def __init__(
        self,
        worker: str,
        lifecycle: Lifecycle,
        ledger: Ledger,
        pool: Pool,
        *,
        clock: Callable[[], int],
    ) -> None:
        """`clock`: Unix microseconds."""
        self.files = FileStore(ledger)
        self.batches = BatchStore(ledger)
        self._lifecycle = lifecycle
        self._pool = pool
        self._clock = clock
        self._threads = Threads("batches")
        self.in_thread = Threads("files")
        """For the routes."""
        self._context = RunContext(
            worker,
            lifecycle,
            self.files,
            self.batches,
            lifecycle.metrics,
            clock,
            lambda: lifecycle.settings,
            self._concurrency,
            self._threads,
        )
        # Mutable:
        self._runs: dict[str, tuple[BatchRun, asyncio.Task[None]]] = {}
        self._wake = asyncio.Event()
        self._upkeep_at = 0.0
        self._errands: set[asyncio.Task[None]] = set()
        self._stuck = 0
        self._trouble = False
        self._closed = False
        lifecycle.router.turns.pressed = self.pressed

    def __repr__(self) -> str:
        return f"<BatchRunner {[run for run, _ in self._runs.values()]}>"

    @property
    def settings(self) -> Settings:
        return self._lifecycle.settings

    def look(self) -> None:
        """Look for batches now: one was created, or cancelled."""
        self._wake.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self._wake.clear()
            if self._closed:
                return
            try:
                await self._tick()
                self._trouble = False
            except LedgerUnavailableError as error:
                if not self._trouble:
                    log.warning("Batches wait for the ledger: %s", error)
                self._trouble = True
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(POLL_SECONDS, self.settings.batch_lease / 4)):
                    await self._wake.wait()

    async def close(self) -> None:
        """Stop every batch that runs here, and leave it to other workers. Idempotent."""
        self._closed = True
        runs = [run for run, task in self._runs.values() if not task.done()]
        await asyncio.gather(*(run.close() for run in runs))
        if self._runs:
            await asyncio.wait([task for _, task in self._runs.values()])
            with contextlib.suppress(LedgerUnavailableError):  # then the leases lapse
                await self._threads(self.batches.release, self._context.worker, list(self._runs))

    async def shut_down(self) -> None:
        """After `close`, and when no request and no background task is left."""
        await self.close()
        if self._errands:
            await asyncio.wait(self._errands)
        for threads in (self._threads, self.in_thread):
            await asyncio.to_thread(threads.close)

    def now(self) -> int:
        """Unix microseconds."""
        return self._clock()

    async def soon(self, work: Callable[[str], None], subject: str) -> None:
        """Do something in the database, even if the request that asks for it is being cancelled. A failure is
        left to the next upkeep."""

        async def errand() -> None:
            with contextlib.suppress(LedgerUnavailableError):
                await self.in_thread(work, subject)

        task = asyncio.create_task(errand())
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)
        await asyncio.shield(task)

    def conditions(self) -> Iterator[Condition]:
        if self._stuck:
            yield Condition("batches_stuck", message=f"Batches without progress: {self._stuck:,}.")

    # -- leases

    async def _tick(self) -> None:
        await self._renew()
        for batch_id in [batch_id for batch_id, (_, task) in self._runs.items() if task.done()]:
            del self._runs[batch_id]
        while self.settings.batch_concurrency and not self._closed and len(self._runs) < MOST_RUNS:
            batch = await self._threads(
                self.batches.claim,
                self._context.worker,
                self._clock(),
                self._until(),
                most_of_tenant=MOST_RUNS_OF_TENANT,
            )
            if batch is None:
                break
            if self._closed:  # meanwhile
                await self._threads(self.batches.release, self._context.worker, [batch.id])
                break
            self._start(batch)
        if time.monotonic() >= self._upkeep_at:
            self._upkeep_at = time.monotonic() + UPKEEP_SECONDS
            await self._keep_up()

    def _until(self) -> int:
        return self._clock() + round(self.settings.batch_lease * SECOND)

    def _start(self, batch: Batch) -> None:
        run = BatchRun(batch, self._context)
        task = asyncio.create_task(run.run())
        task.add_done_callback(self._ended)
        self._runs[batch.id] = run, task

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:  # a defect: the lease lapses
            log.error("A batch failed", exc_info=task.exception())
        self.look()

    async def _renew(self) -> None:
        running = [batch_id for batch_id, (_, task) in self._runs.items() if not task.done()]
        if not running:
            return
        leased = await self._threads(self.batches.renew, self._context.worker, running, self._until())
        for batch_id in running:
            self._runs[batch_id][0].heard(leased.get(batch_id))

    async def _keep_up(self) -> None:
        now = self._clock()
        await self._threads(self.files.sweep, now)
        await self._threads(self.batches.sweep, now - self.settings.file_retention_days * DAY)
        self._stuck = await self._threads(self.batches.stuck, now - STUCK_SECONDS * SECOND)

    # -- seats

    def _concurrency(self) -> int:
        running = sum(not task.done() for _, task in self._runs.values())
        return max(1, self.settings.batch_concurrency // max(1, running))

    def pressed(self, base_model: str, requests: int) -> None:
        """That many requests wait for engines of a base model: abort as many lines, the latest first, on
        engines that have no room. They run again later."""
        candidates: list[tuple[int, Running]] = []
        for run, _ in self._runs.values():
            for running in run.lines.running.values():
                attempt = running.exchange.context.attempt
                if attempt is None or attempt.outcome is not None:
                    continue
                state = self._pool.known.get(running.exchange.context.engine)
                if state is None or state.engine.base_model != base_model:
                    continue
                if running.transport.left:
                    requests -= 1  # its seat is about to be free
                elif state.view.full:
                    candidates.append((attempt.start, running))
        candidates.sort(key=lambda candidate: -candidate[0])
        for _, running in candidates[: max(0, requests)]:
            running.transport.leave()

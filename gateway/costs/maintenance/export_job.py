"""Exports by schedule: each worker runs one job, and the one that leads exports."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass

from adapters.errors import StoreUnavailableError
from adapters.store.protocol.coordination import CoordinationStore, resigning
from gateway.costs.maintenance.ledger_process import LedgerProcess
from gateway.costs.maintenance.snapshot import write_snapshot
from gateway.costs.scheduled_exports.layout import Schedule
from gateway.costs.scheduled_exports.status import EXPORTS
from gateway.costs.scheduled_exports.writing import Room, due_now, write_due
from gateway.metering.ledger.database import LedgerUnavailableError
from gateway.metering.ledger.ledger import Ledger
from gateway.observability.conditions import Condition

log = logging.getLogger("florin.costs")

ROLE = "scheduled-exports"
LEASE_MS = 30_000
LOOK_SECONDS = 10.0
PAUSE_SECONDS = 60.0
"""Between two looks at what is due; doubles with each failure."""
LONGEST_PAUSE = 1800.0
_MOST_FAILURE = 1000


@dataclass(slots=True)
class ExportJob:
    """Two leaders that overlap write the same files with the same content."""

    store: CoordinationStore
    ledger: Ledger
    open_process: Callable[[], LedgerProcess]
    """A process for one pass: the libraries of object stores need not stay in memory for a day."""
    owner: str
    schedule: Schedule
    room: Room
    clock: Callable[[], int]
    """Microseconds, UTC."""
    look: float = LOOK_SECONDS
    pause: float = PAUSE_SECONDS
    # Mutable: what failed in the last pass of this worker; empty: nothing, or another worker leads.
    failure: str = ""

    async def run(self) -> None:
        """Run until cancelled."""
        running: asyncio.Task[None] | None = None
        due, failures = time.monotonic(), 0
        async with resigning(self.store, ROLE, self.owner):
            try:
                while True:
                    with contextlib.suppress(StoreUnavailableError):
                        leads = await self.store.lead(ROLE, self.owner, LEASE_MS)
                        if not leads:
                            self.failure = ""
                        elif running is None and time.monotonic() >= due:
                            running = asyncio.create_task(self.attempt())
                    await asyncio.sleep(self.look)
                    if running is not None and running.done():
                        running = None
                        failures = failures + 1 if self.failure else 0
                        due = time.monotonic() + min(self.pause * 2.0 ** min(failures, 10), LONGEST_PAUSE)
            finally:
                if running is not None:
                    running.cancel()
                    await asyncio.wait([running])

    async def attempt(self) -> None:
        """Export what is due, if anything is. Sets `failure`, and tells all workers."""
        now, failure = self.clock(), ""
        try:
            if await asyncio.to_thread(due_now, self.ledger, self.schedule, now):
                failure = await self._write(now)
        except (LedgerUnavailableError, BrokenProcessPool) as error:
            failure = str(error)
        except Exception as error:  # a defect in one pass must not end the job
            log.exception("Scheduled export failed.")
            failure = repr(error)
        if failure and failure != self.failure:
            log.warning("Scheduled export failed: %s Retrying.", failure)
        elif self.failure and not failure:
            log.warning("Scheduled export recovered.")
        self.failure = failure[:_MOST_FAILURE]
        with contextlib.suppress(LedgerUnavailableError):  # the same may prevent this too
            await asyncio.to_thread(write_snapshot, self.ledger, EXPORTS, now, self.failure)

    async def _write(self, now: int) -> str:
        process = self.open_process()
        try:
            failed = await process.run(write_due, self.schedule, now, self.room)
        finally:
            await process.close()
        return " ".join(failed)

    def conditions(self) -> Iterator[Condition]:
        if self.failure:
            yield Condition("exports_failing", message=self.failure)

"""Exports by schedule, on one worker of the installation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass

from adapters.store.leader_job import PassFailedError
from gateway.costs.maintenance.ledger_process import LedgerProcess
from gateway.costs.maintenance.snapshot import write_snapshot
from gateway.costs.scheduled_exports.layout import Schedule
from gateway.costs.scheduled_exports.status import EXPORTS
from gateway.costs.scheduled_exports.writing import Room, due_now, write_due
from gateway.metering.ledger.ledger import Ledger

ROLE = "scheduled-exports"
PAUSE_SECONDS = 60.0
"""Between two looks at what is due."""
LONGEST_PAUSE = 1800.0


@dataclass(slots=True)
class ScheduledExports:
    """The passes of the worker that leads. Two that overlap write the same files with the same content."""

    ledger: Ledger
    open_process: Callable[[], LedgerProcess]
    """A process for one pass: the libraries of object stores need not stay in memory for a day."""
    schedule: Schedule
    room: Room
    clock: Callable[[], int]
    """Microseconds, UTC."""

    async def work(self) -> None:
        """Export what is due, if anything is. Raises PassFailedError, LedgerUnavailableError."""
        now = self.clock()
        if not await asyncio.to_thread(due_now, self.ledger, self.schedule, now):
            return
        process = self.open_process()
        try:
            failed = await process.run(write_due, self.schedule, now, self.room)
        except BrokenProcessPool as error:
            raise PassFailedError(str(error)) from error
        finally:
            await process.close()
        if failed:
            raise PassFailedError(" ".join(failed))

    async def report(self, failure: str) -> None:
        """Tells all workers. Raises LedgerUnavailableError."""
        await asyncio.to_thread(write_snapshot, self.ledger, EXPORTS, self.clock(), failure)

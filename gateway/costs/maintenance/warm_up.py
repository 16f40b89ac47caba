"""Starts the ledger process before it is needed, so that the first report is as quick as those after it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool

from gateway.costs.maintenance.ledger_process import LedgerProcess
from gateway.costs.periods import Period
from gateway.costs.reports.report import DEFAULT_BY, Question, read_report
from gateway.metering.ledger.database import LedgerUnavailableError
from gateway.metering.ledger.ledger import Ledger
from gateway.units import HOUR

DELAY_SECONDS = 1.0
"""After the worker's start: the first requests come first."""


async def warm_up(ledger_process: LedgerProcess, clock: Callable[[], int]) -> None:
    """Start the process once, and wait until cancelled: a process that dies is replaced by the next call."""
    await asyncio.sleep(DELAY_SECONDS)
    with contextlib.suppress(LedgerUnavailableError, BrokenProcessPool):  # the next report will say so
        await ledger_process.run(_report_nothing, clock())
    await asyncio.Event().wait()


def _report_nothing(ledger: Ledger, now: int) -> None:
    """In the ledger process: report the hour to come, which loads and compiles what reports need."""
    start = now // HOUR * HOUR + HOUR
    with ledger.read() as connection:
        read_report(connection, Question(Period(start, start + HOUR), DEFAULT_BY))

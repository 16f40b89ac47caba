"""Keeps the books up to date without being asked: roll-ups, retention, the checks, and the figures that every
worker shows as metrics. One worker at a time leads; the sums are made in its process beside it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass

from adapters.errors import StoreUnavailableError
from adapters.store.protocol import Store
from gateway.costs.maintenance.ledger_process import LedgerProcess
from gateway.costs.maintenance.snapshot import read_snapshot, write_snapshot
from gateway.costs.maintenance.totals import totals
from gateway.costs.reconciliation.drift import drift
from gateway.costs.rollups.rollup import roll
from gateway.metering.ledger.ledger import Ledger, LedgerUnavailableError
from gateway.metering.ledger.retention import prune
from gateway.observability.metrics import LedgerFigures, Metrics
from gateway.runtime.clock import system_time

log = logging.getLogger(__name__)

ROLE = "bookkeeper"
LEASE_MS = 15_000
LOOK_SECONDS = 5.0
FIRST_SECONDS = 15.0
"""After its start a worker has better things to do; what was found before is shown meanwhile."""
REST = 20
"""Times the last pass's length: bookkeeping takes at most 5 % of a processor."""
READ_SECONDS = 15.0
ROLL_SECONDS = 10.0
"""So long may a pass roll; what is left is for the next, so that others need not wait behind it."""
METRICS = "metrics"
"""Name of the snapshot that workers show."""
TROUBLE = "trouble"
"""Name of the snapshot that says what stopped the latest pass that came to nothing."""
_MOST_TROUBLE = 500


@dataclass(slots=True)
class MaintenanceJob:
    store: Store
    ledger_process: LedgerProcess
    """A process that has time: with many roll-ups a pass takes seconds."""
    owner: str
    interval: float
    retention_days: int
    look: float = LOOK_SECONDS
    clock: Callable[[], int] = system_time
    """Microseconds, UTC."""
    # Mutable: what was said last of the books' being away.
    _trouble: str = ""

    async def run(self) -> None:
        """For ever; cancel to stop. Where Redis is away, nobody leads, and reports roll up for themselves."""
        keeping: asyncio.Task[float] | None = None
        due = time.monotonic() + min(FIRST_SECONDS, self.interval)
        try:
            while True:
                with contextlib.suppress(StoreUnavailableError):
                    leads = await self.store.lead(ROLE, self.owner, LEASE_MS)
                    if leads and keeping is None and time.monotonic() >= due:
                        keeping = asyncio.create_task(self._keep())
                await asyncio.sleep(min(self.look, self.interval))
                if keeping is not None and keeping.done():
                    due = time.monotonic() + max(self.interval, REST * keeping.result())
                    keeping = None
        finally:
            if keeping is not None:
                keeping.cancel()
                await asyncio.wait([keeping])
            with contextlib.suppress(StoreUnavailableError):  # then the lease lapses by itself
                await self.store.resign(ROLE, self.owner)

    async def _keep(self) -> float:
        """Seconds of work after which it should rest: none where it only waited for a ledger that is away.
        What it meets is logged when it changes, and met again."""
        began = time.monotonic()
        trouble, worked = "", True
        try:
            await self.ledger_process.run(keep, self.clock(), self.retention_days)
        except (LedgerUnavailableError, BrokenProcessPool) as error:
            trouble, worked = str(error), isinstance(error, BrokenProcessPool)
            if not self._trouble:
                log.warning("The books cannot be kept: %s", error)
        except Exception as error:  # a defect in one pass; nobody else would keep the books
            trouble = repr(error)
            if trouble != self._trouble:
                log.exception("Keeping the books failed.")
        if self._trouble and not trouble:
            log.warning("The books are kept again.")
        self._trouble = trouble
        if trouble:  # for `florin doctor`, which may ask another worker
            with contextlib.suppress(Exception):  # what stopped the pass may stop this too
                await self.ledger_process.run(write_snapshot, TROUBLE, self.clock(), trouble[:_MOST_TROUBLE])
        return time.monotonic() - began if worked else 0.0


def keep(ledger: Ledger, now: int, retention_days: int) -> None:
    """One pass, in the process beside the worker. Raises LedgerUnavailableError; what was done until then
    stays."""
    roll(ledger, now, patience=ROLL_SECONDS)
    prune(ledger, now, retention_days)
    found = totals(ledger, now)
    ratios = [((d.engine, d.token_type), d.ratio) for d in drift(ledger, now)]
    before = read_figures(ledger, after=-1)
    figures = LedgerFigures(
        at=now,
        series={
            "florin_gpu_provisioned_seconds_total": found.provisioned,
            "florin_gpu_busy_seconds_total": found.busy,
            "florin_cost_total": found.cost,
            "florin_token_drift_ratio": ratios,
            "florin_ledger_imbalance_nano_gpu_hours": [((), float(found.imbalance))],
            "florin_ledger_set_aside": [((), float(found.set_aside))],
            "florin_bookkeeping_timestamp_seconds": [((), now / 1e6)],
        },
    )
    write_snapshot(ledger, METRICS, now, (figures.never_back(before) if before else figures).document())


async def show(ledger: Ledger, metrics: Metrics, *, seconds: float) -> None:
    """Every worker's: what the bookkeeper last found is what /metrics shows. For ever; cancel to stop."""
    at = -1
    while True:
        with contextlib.suppress(LedgerUnavailableError):  # the shipper says so
            figures = await asyncio.to_thread(read_figures, ledger, after=at)
            if figures is not None:
                at = figures.at
                metrics.show_books(figures)
        await asyncio.sleep(seconds)


def read_figures(ledger: Ledger, *, after: int) -> LedgerFigures | None:
    """None: there is nothing newer. Raises LedgerUnavailableError."""
    document = read_snapshot(ledger, METRICS, after=after)
    return None if document is None else LedgerFigures.of(document)

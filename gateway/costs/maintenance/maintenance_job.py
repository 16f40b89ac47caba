"""Ledger maintenance, at regular intervals: roll-ups, retention, checks, and the figures that every worker
exports as metrics.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass

from sqlalchemy import func, select

from adapters.store.leader_job import PassFailedError
from gateway.costs.maintenance.ahead import ahead
from gateway.costs.maintenance.ledger_process import LedgerProcess
from gateway.costs.maintenance.snapshot import read_snapshot, write_snapshot
from gateway.costs.maintenance.totals import totals
from gateway.costs.reconciliation.drift import drift
from gateway.costs.rollups.rollup import roll
from gateway.costs.scheduled_exports.status import export_series
from gateway.metering.ledger.database import LedgerUnavailableError
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.retention import prune
from gateway.metering.ledger.schema import batches
from gateway.observability.computed_metrics import LedgerFigures, Series
from gateway.observability.metrics import Metrics
from gateway.runtime.clock import system_time

ROLE = "ledger-maintenance"
FIRST_SECONDS = 15.0
"""Delay after a worker's start; until then, metrics show the figures of the last pass."""
REST = 20
"""Pause as a multiple of what the last pass took, without the start of its process: maintenance takes at most
5 % of a processor."""
READ_SECONDS = 15.0
ROLL_SECONDS = 10.0
"""Longest roll-up in one pass; the next pass continues, so that other work does not wait behind it."""
METRICS = "metrics"
"""Name of the snapshot that workers export as metrics."""
TROUBLE = "trouble"
"""Name of the snapshot with the error of the last failed pass."""
_MOST_TROUBLE = 500


@dataclass(slots=True)
class Maintenance:
    """The passes of the worker that leads. A pass is idempotent, so two overlapping leaders do no harm. While
    Redis is away no one leads, and reports roll up on demand."""

    ledger_process: LedgerProcess
    """A process of its own, since a pass with many roll-ups takes seconds."""
    retention_days: int
    interval: float
    """Seconds between passes, at least."""
    clock: Callable[[], int] = system_time
    """Microseconds, UTC."""

    async def work(self) -> float:
        """One pass. Returns the seconds until the next. Raises LedgerUnavailableError, PassFailedError."""
        try:
            spent = await self.ledger_process.run(maintain, self.clock(), self.retention_days)
        except BrokenProcessPool as error:
            raise PassFailedError(str(error)) from error
        return max(self.interval, REST * spent)

    async def report(self, failure: str) -> None:
        """For `florin doctor`, which may run on another worker. Raises LedgerUnavailableError."""
        if failure:
            await self.ledger_process.run(write_snapshot, TROUBLE, self.clock(), failure[:_MOST_TROUBLE])


def maintain(ledger: Ledger, now: int, retention_days: int) -> float:
    """One pass, in the ledger process. Returns the seconds that it took. Raises
    LedgerUnavailableError; completed steps stay."""
    began = time.monotonic()
    roll(ledger, now, patience=ROLL_SECONDS)
    prune(ledger, now, retention_days)
    month_totals = totals(ledger, now)
    ratios = [((d.engine, d.token_type), d.ratio) for d in drift(ledger, now)]
    before = read_figures(ledger, after=-1)
    figures = LedgerFigures(
        at=now,
        series={
            "florin_gpu_provisioned_seconds_total": month_totals.provisioned,
            "florin_gpu_busy_seconds_total": month_totals.busy,
            "florin_cost_total": month_totals.cost,
            "florin_token_drift_ratio": ratios,
            "florin_ledger_imbalance_nano_gpu_hours": [((), float(month_totals.imbalance))],
            "florin_ledger_set_aside": [((), float(month_totals.set_aside))],
            "florin_ledger_maintenance_timestamp_seconds": [((), now / 1e6)],
            **ahead(ledger, now),
            **_batch_backlog(ledger, now),
            **export_series(ledger, now),
        },
    )
    write_snapshot(ledger, METRICS, now, (figures.never_back(before) if before else figures).document())
    return time.monotonic() - began


def _batch_backlog(ledger: Ledger, now: int) -> Mapping[str, Series]:
    """What batches have before them. Raises LedgerUnavailableError."""
    table = batches.c
    waiting = func.sum(table.total - table.completed - table.failed)
    open_ = select(func.coalesce(waiting, 0), func.min(table.created_at)).where(table.ended_at.is_(None))
    with ledger.read() as connection:
        counts = connection.execute(select(table.status, func.count()).group_by(table.status)).all()
        lines, oldest = connection.execute(open_).one()
    return {
        "florin_batches": [((status,), float(count)) for status, count in counts],
        "florin_batch_lines_waiting": [((), float(lines))],
        "florin_batch_oldest_seconds": [((), 0.0 if oldest is None else max(0.0, (now - oldest) / 1e6))],
    }


async def show(ledger: Ledger, metrics: Metrics, *, seconds: float) -> None:
    """On every worker: export the figures of the last pass on /metrics, until cancelled."""
    shown_at = -1
    while True:
        with contextlib.suppress(LedgerUnavailableError):  # logged by the shipper
            figures = await asyncio.to_thread(read_figures, ledger, after=shown_at)
            if figures is not None:
                shown_at = figures.at
                metrics.show_ledger_figures(figures)
        await asyncio.sleep(seconds)


def read_figures(ledger: Ledger, *, after: int) -> LedgerFigures | None:
    """None if there is nothing newer. Raises LedgerUnavailableError."""
    document = read_snapshot(ledger, METRICS, after=after)
    return None if document is None else LedgerFigures.of(document)

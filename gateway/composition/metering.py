"""The usage log, the ledger, and the process that maintains it."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass

from gateway.composition.context import WorkerContext
from gateway.costs.export.spool import Spool
from gateway.costs.maintenance.ledger_process import LedgerProcess
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.meter import Meter
from gateway.metering.wal.insertion_process import InsertionClient, InsertionProcess, spawn


@dataclass(frozen=True, slots=True)
class Metering:
    ledger: Ledger
    ledger_process: LedgerProcess
    spool: Spool
    meter: Meter


async def open_metering(context: WorkerContext, entrance: socket.socket | None) -> Metering:
    """`entrance`: see `InsertionProcess`; None for a worker without a supervisor."""
    settings, metrics, stack = context.settings, context.metrics, context.stack
    ledger = Ledger(settings.ledger)
    ledger.observe = metrics.ledger_transaction
    stack.callback(ledger.close)
    ledger_process = LedgerProcess(settings.ledger)
    stack.push_async_callback(ledger_process.close)
    if entrance is None:
        insertion_process = InsertionProcess(settings.ledger, spawn)
        stack.push_async_callback(asyncio.to_thread, insertion_process.close)
        inserter = InsertionClient(insertion_process.entrance, insertion_process.ensure_running)
    else:
        inserter = InsertionClient(entrance)
    stack.callback(inserter.close)
    spool = Spool(settings.exports, settings.export_max_bytes)
    await asyncio.to_thread(spool.sweep)
    meter = Meter(
        settings.state_dir / "usage",
        ledger,
        metrics,
        serve_when_full=settings.wal_full == "serve",
        clock=context.clock,
        inserter=inserter,
        kept_seconds=0.0 if settings.ledger.startswith("sqlite") else settings.usage_kept_seconds,
        last_seconds=settings.usage_grace,
    )
    await meter.start()
    stack.push_async_callback(meter.close)
    return Metering(ledger, ledger_process, spool, meter)

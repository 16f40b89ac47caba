"""Compares the gateway's clock with those of the system, Redis and the ledger's database."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from adapters.errors import StoreUnavailableError
from adapters.store.protocol.coordination import CoordinationStore
from gateway.metering.ledger.database import LedgerUnavailableError
from gateway.metering.ledger.ledger import Ledger
from gateway.observability.metrics import Metrics
from gateway.runtime.clock import AGAINST, Clock, system_time

CHECK_SECONDS: Final = 10.0
_SLOW = 2_000_000
"""Microseconds. A slower answer is too imprecise to compare."""


async def watch(clock: Clock, store: CoordinationStore, ledger: Ledger, metrics: Metrics) -> None:
    """Run until cancelled."""
    while True:
        clock.compare(await _ask(clock, store, ledger))
        for name in AGAINST:
            metrics.clock_offset(name, abs(clock.offsets.get(name, 0)) / 1e6)
        await asyncio.sleep(CHECK_SECONDS)


async def _ask(clock: Clock, store: CoordinationStore, ledger: Ledger) -> dict[str, int]:
    """Offsets of the other clocks from ours, for those that answer quickly."""
    offsets = {"system": system_time() - clock.now()}

    def note(name: str, before: int, their_time: int) -> None:
        after = clock.now()
        if after - before <= _SLOW:
            offsets[name] = their_time - (before + after) // 2

    with suppress(StoreUnavailableError):
        note("redis", clock.now(), await store.time())
    with suppress(LedgerUnavailableError):
        before = clock.now()
        their_time = await asyncio.to_thread(ledger.time)
        if their_time is not None:
            note("ledger", before, their_time)
    return offsets

"""Asks the other clocks what time it is, so that a wrong one is noticed."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from adapters.errors import StoreUnavailableError
from adapters.store.protocol import Store
from gateway.metering.ledger.ledger import Ledger, LedgerUnavailableError
from gateway.observability.metrics import Metrics
from gateway.runtime.clock import AGAINST, Clock, system_time

CHECK_SECONDS: Final = 10.0
_SLOW = 2_000_000
"""Microseconds. An answer that took so long says nothing of the time."""


async def watch(clock: Clock, store: Store, ledger: Ledger, metrics: Metrics) -> None:
    """For ever; cancel to stop."""
    while True:
        clock.compare(await _ask(clock, store, ledger))
        for name in AGAINST:
            metrics.clock_offset(name, abs(clock.offsets.get(name, 0)) / 1e6)
        await asyncio.sleep(CHECK_SECONDS)


async def _ask(clock: Clock, store: Store, ledger: Ledger) -> dict[str, int]:
    """What other clocks show less what ours shows: of those that answer, and at once."""
    found = {"system": system_time() - clock.now()}

    def note(name: str, before: int, said: int) -> None:
        after = clock.now()
        if after - before <= _SLOW:
            found[name] = said - (before + after) // 2

    with suppress(StoreUnavailableError):
        note("redis", clock.now(), await store.time())
    with suppress(LedgerUnavailableError):
        before = clock.now()
        said = await asyncio.to_thread(ledger.time)
        if said is not None:
            note("ledger", before, said)
    return found

"""Ships audit entries from Redis to the ledger. One worker at a time does it for all.

Redis keeps an entry until the ledger has committed it, and always the newest hundred, so that recent entries
can be read while the ledger is unavailable. Each pass reads everything in Redis: a cursor would be wrong once
Redis came back empty or with older data.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

from adapters.store.protocol.registry import RegistryStore
from gateway.metering.ledger.audit_log import Logged, held, logged, ship
from gateway.metering.ledger.database import REFUSALS, LedgerUnavailableError, is_definite
from gateway.metering.ledger.ledger import Ledger

log = logging.getLogger(__name__)

ROLE = "auditor"
SECONDS = 2.0
KEEP = 100
"""Newest entries that stay in Redis."""
PAGE = 1000


@dataclass(slots=True)
class AuditShipper:
    store: RegistryStore
    ledger: Ledger
    # Mutable: shipped entries that Redis still has.
    _shipped: frozenset[tuple[str, str]] = frozenset()

    async def work(self) -> None:
        """A leader's pass. Raises LedgerUnavailableError, StoreUnavailableError; entries wait in Redis."""
        try:
            await self.ship()
        except LedgerUnavailableError:
            self._shipped = frozenset()  # the server that answers next may lack them
            raise

    async def ship(self) -> int:
        """One pass. Returns the number of entries shipped. Concurrent passes do no harm. Raises
        LedgerUnavailableError, StoreUnavailableError; what was shipped until then stays."""
        seen: list[tuple[str, str]] = []
        count = 0
        async for page in pages(self.store):
            new = [entry for entry in page if (entry.id, entry.digest) not in self._shipped]
            if new:  # the others again, in case the ledger's database has lost them since
                await asyncio.to_thread(_ship_each, self.ledger, page)
                count += len(new)
            seen += ((entry.id, entry.digest) for entry in page)
        if count:
            await self.store.trim_audit(seen[-1][0], keep=KEEP)
        self._shipped = frozenset(seen)
        return count


def _ship_each(ledger: Ledger, entries: Sequence[Logged]) -> None:
    """Ship all at once or, if the database refuses, in halves, until the refused entry is alone; ship that
    one in a storable form. Raises LedgerUnavailableError."""
    try:
        ship(ledger, entries)
    except REFUSALS as error:
        if not is_definite(error):
            raise
        if len(entries) > 1:
            for half in (entries[: len(entries) // 2], entries[len(entries) // 2 :]):
                _ship_each(ledger, half)
            return
        log.error("The ledger cannot store this audit entry unchanged: %s: %.2000r", error, entries[0])
        try:
            ship(ledger, [held(entries[0])])
        except REFUSALS as again:
            if not is_definite(again):
                raise
            log.error("Dropped an audit entry that the ledger cannot store.")


async def pages(store: RegistryStore) -> AsyncGenerator[list[Logged], None]:
    """Everything that Redis has, oldest first. Raises StoreUnavailableError."""
    after = ""
    while True:
        page = [logged(entry) for entry in await store.audit(after, count=PAGE)]
        if page:
            yield page
        if len(page) < PAGE:
            return
        after = page[-1].id


async def tail(store: RegistryStore) -> list[Logged]:
    """Everything that Redis has, oldest first. Raises StoreUnavailableError."""
    return [entry async for page in pages(store) for entry in page]

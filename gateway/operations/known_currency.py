"""The currency of the price book, for pages that must not wait for the ledger."""

from __future__ import annotations

import asyncio
from typing import Final

from gateway.costs.prices.price_store import currency_of
from gateway.metering.ledger.database import LedgerUnavailableError
from gateway.metering.ledger.ledger import Ledger

PATIENCE: Final = 0.5
"""Seconds that a page waits for it."""


class KnownCurrency:
    """What this worker knows of it. A price book never changes its currency, so an answer is kept. Mutable:
    that answer, and the query in progress, which all pages share, so that a ledger that hangs holds one
    thread, however often a page is loaded."""

    def __init__(self) -> None:
        self._known = ""
        self._asking: asyncio.Task[str] | None = None

    def __repr__(self) -> str:
        return f"<KnownCurrency {self._known or 'unknown'}>"

    async def get(self, ledger: Ledger) -> str:
        """Empty if there is no price yet, or the ledger does not answer in time."""
        if self._known:
            return self._known
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(_ask(ledger))
        done, _ = await asyncio.wait({self._asking}, timeout=PATIENCE)
        if done:
            self._known = self._asking.result()
        return self._known


async def _ask(ledger: Ledger) -> str:
    try:
        return await asyncio.to_thread(currency_of, ledger)
    except LedgerUnavailableError:
        return ""

"""What a token costs on each engine, relative to the others: its price by its GPU's speed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable

from adapters.model import Engine
from gateway.costs.prices.book import Price, PriceBook
from gateway.costs.prices.price_store import list_prices
from gateway.metering.ledger.database import LedgerUnavailableError
from gateway.metering.ledger.ledger import Ledger

READ_SECONDS = 60.0


class TokenCosts:
    """The price book, read again every minute. Mutable: the prices as last read."""

    def __init__(self, ledger: Ledger, now: Callable[[], int]) -> None:
        """`now`: Unix microseconds."""
        self._ledger = ledger
        self._now = now
        self.load(())

    def load(self, prices: Iterable[Price]) -> None:
        known = list(prices)
        self._book = PriceBook(known)
        self._speeds = {p.gpu_type.lower(): p.speedup_millis / 1000 for p in known if p.speedup_millis}

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            with contextlib.suppress(LedgerUnavailableError):  # the last prices stay
                self.load(await asyncio.to_thread(list_prices, self._ledger))
            await asyncio.sleep(READ_SECONDS)

    def of(self, engine: Engine) -> float:
        """GPU-hours' price by speed; 0 without a price, so that no engine is avoided for a price that nobody
        has entered."""
        rate = self._book.rate(engine.gpu_type, engine.region, engine.purchase, self._now())
        return 0.0 if rate is None else rate / self._speeds.get(engine.gpu_type.lower(), 1.0)

"""What tenants that pay in advance may use in the present month: a budget in money, as high as the credits
that the month can draw. Limits enforce it like any other; what it counts is priced like any other's.

A month begins with what earlier months have left. While one of these is open, that is what closing it now
would leave: its last minutes are missing until they are rolled up.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from decimal import Decimal
from typing import Any

from gateway.costs.closing.preview import holdings_now
from gateway.costs.credits.grants import Grant
from gateway.costs.credits.store import read_grants
from gateway.costs.periods import iso, month_of
from gateway.costs.prices.book import PriceBook
from gateway.costs.prices.price_store import read_prices
from gateway.metering.ledger.database import LedgerUnavailableError
from gateway.metering.ledger.ledger import Ledger
from gateway.tenants.directory import Directory, Tenant
from gateway.tenants.terms import MOST_MONEY, Budget, PrepaidBudget
from gateway.units import MICRO, Cents

READ_SECONDS = 5.0
_SETTLE_SECONDS = 60.0
"""How long what open months leave is believed: it is a settlement of all tenants."""


class CreditLimits:
    """Read again every few seconds if a tenant pays in advance. Mutable: what was last read. On the event
    loop only."""

    def __init__(self, ledger: Ledger, directory: Directory, now: Callable[[], int]) -> None:
        """`now`: Unix microseconds."""
        self._ledger = ledger
        self._directory = directory
        self._now = now
        self._version: tuple[str, Sequence[Grant]] | None = None
        self._settled_at = 0.0
        self._available: Mapping[str, Cents] = {}
        self.changed: Callable[[], None] = lambda: None
        """Called when budgets have changed."""

    def budget(self, tenant: Tenant) -> Budget:
        """The tenant's own or, if its credits allow less, what they allow. Its own until they are known."""
        if not tenant.prepaid or self._version is None:
            return tenant.budget
        available = Decimal(self._available.get(tenant.name, 0)) / 100
        own = tenant.budget.money_per_month
        if available > MOST_MONEY or (own is not None and own <= available):
            return tenant.budget
        terms: dict[str, Any] = {f.name: getattr(tenant.budget, f.name) for f in fields(Budget)}
        return PrepaidBudget(**{**terms, "money_per_month": available})

    async def refresh(self) -> None:
        if not any(tenant.prepaid for tenant in self._directory.tenants.values()):
            self._version = None
            return
        month = iso(self._now())[:7]
        with contextlib.suppress(LedgerUnavailableError):  # what was read last stays
            read = await asyncio.to_thread(self._read, month)
            if read is not None:
                changed = read[1] != self._available or self._version is None
                self._version, self._available = read
                self._settled_at = time.monotonic()
                if changed:
                    self.changed()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.refresh()
            now = self._now()
            await asyncio.sleep(min(READ_SECONDS, (month_of(iso(now)[:7]).end - now) / MICRO))

    def _read(self, month: str) -> tuple[tuple[str, Sequence[Grant]], Mapping[str, Cents]] | None:
        """None: nothing has changed."""
        with self._ledger.read() as connection:
            version = month, read_grants(connection)
            if version == self._version and time.monotonic() - self._settled_at < _SETTLE_SECONDS:
                return None
            holdings = holdings_now(connection, month, PriceBook(read_prices(connection)))
        return version, {tenant: Cents(sum(h.cents for h in own)) for tenant, own in holdings.items()}

"""What an admitted request has reserved of its limits, until it is settled."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from gateway.dataplane.request import UNNAMED, Sold
from gateway.tenants.directory import Key, Tenant
from gateway.tenants.limits.allowances import Scope
from gateway.tenants.limits.needs import Bounds, Need, OutputHistory, Prices
from gateway.tenants.limits.subject_account import Account, Reservation
from gateway.tenants.limits.wording import budget_warning, rate_headers

_LEAVE_SECONDS: Final = 1.0
"""How long an answer waits for the store. Where it is away, another worker cannot have the place anyway."""


@dataclass(frozen=True, slots=True)
class AppliedLimits:
    """What applies to the requests of one key; with `accounts` of its scopes, to one request. Made again when
    the key, its tenant or its organization changes."""

    tenant: Tenant
    key: Key
    organization: Tenant | None
    accounts: tuple[Account, ...]
    """In the order of their subjects, in which they are locked."""
    shadows: tuple[Account, ...]
    """Those that refuse nothing."""
    scopes: tuple[Scope, ...]
    """Limits of adapters, end users, tags and sessions."""
    bounds: Bounds | None
    history: OutputHistory
    prices: Prices | None
    """None: no budget is in money."""
    unlimited: bool
    """Nothing of the above limits anything."""


class Grant:
    """One admitted request's reservation. `settle` ends it, exactly once; the lifecycle calls it by way of
    `Exchange.close`."""

    __slots__ = ("_applied", "_held", "_left", "_money", "_reached", "_sold", "_tokens", "headers")

    def __init__(
        self, applied: AppliedLimits, reservations: list[Reservation], now: float, sold: Sold = UNNAMED
    ) -> None:
        self._applied = applied
        self._sold = sold
        # Mutable: None once settled.
        self._held: list[Reservation] | None = reservations
        self._tokens = self._money = 0
        self._reached = self._left = False
        headers = rate_headers(applied.accounts, now)
        warning = budget_warning(applied.accounts)
        if warning:
            headers["x-florin-budget-warning"] = warning
        self.headers = [(name.encode(), value.encode()) for name, value in headers.items()]

    def add(self, reservation: Reservation) -> None:
        """Something more that it has reserved."""
        assert self._held is not None
        self._held.append(reservation)

    def count(
        self,
        prompt: int,
        cached: int,
        completion: int,
        *,
        choices: int,
        reasoning: int = 0,
        requests: int = 1,
        gpu_type: str = "",
    ) -> None:
        """Add what an attempt used; zeros if it does not count. `reasoning`: part of the completion.
        `requests`: 0 if it continues another attempt, or does not count."""
        self._tokens += prompt + completion
        self._reached = True
        prices = self._applied.prices
        if prices is not None:
            price = prices.of(self._applied.tenant.name, self._sold, gpu_type)
            if price is not None:
                self._money += price.cost(prompt, cached, completion, reasoning=reasoning, requests=requests)
        if completion:
            self._applied.history.learn(-(-completion // choices))

    async def leave(self) -> None:
        """Give the request's place among the concurrent ones back, before its answer ends: a client may send
        its next request at once, and to another worker. Idempotent."""
        releases = [task for task in self._leave() if task is not None]
        if releases:
            await asyncio.wait(releases, timeout=_LEAVE_SECONDS)

    def _leave(self) -> list[asyncio.Task[None] | None]:
        if self._held is None or self._left:
            return []
        self._left = True
        return [account.leave() for account, _, _ in self._held]

    def settle(self) -> None:
        """Give back what was reserved, and count what was used. A request that no engine got counts as
        none. Idempotent."""
        self._leave()
        reservations, self._held = self._held, None
        if reservations is None:
            return
        used = (int(self._reached), self._tokens, self._money)
        for account, holdings, taken in reservations:
            account.settle(holdings, taken, used)


class Unlimited(Grant):
    """For requests without limits. It holds nothing, so all share one."""

    __slots__ = ()

    def __init__(self) -> None:
        self._held, self.headers = None, []

    async def leave(self) -> None:
        pass

    def count(self, *_: object, **__: object) -> None:
        pass


UNLIMITED: Final = Unlimited()


def reserve(applied: AppliedLimits, need: Need, now: float) -> Grant:
    """Reserve what the request is expected to need, whether this worker's shares cover it or not."""
    reservations = [account.take(need.expected) for account in applied.accounts]
    return Grant(applied, reservations, now, need.sold)

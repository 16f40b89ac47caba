"""What an admitted request has reserved from its tenant's and its key's limits, until it is settled."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from adapters.store.protocol.limits import Amounts
from gateway.tenants.directory import Key, Tenant
from gateway.tenants.limits.needs import Bounds, Need, OutputHistory, TokenPrice
from gateway.tenants.limits.subject_account import Account
from gateway.tenants.limits.wording import budget_warning, rate_headers

_LEAVE_SECONDS: Final = 1.0
"""How long an answer waits for the store. Where it is away, another worker cannot have the place anyway."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What applies to the requests of one key. Made again when the key or its tenant changes."""

    tenant: Tenant
    key: Key
    accounts: tuple[Account, ...]
    bounds: Bounds | None
    history: OutputHistory
    price: TokenPrice | None
    """None also if no budget is in money."""


class Grant:
    """One admitted request's reservation. `settle` ends it, exactly once; the lifecycle calls it by way of
    `Exchange.close`."""

    __slots__ = ("_held", "_left", "_plan", "_reached", "_tokens", "headers")

    def __init__(self, plan: Plan, held: list[tuple[Account, Amounts]], now: float) -> None:
        self._plan = plan
        # Mutable: None once settled. With the flows that were limited when it was reserved.
        self._held: list[tuple[Account, tuple[int, ...], Amounts]] | None = [
            (account, account.flows, taken) for account, taken in held
        ]
        self._tokens = (0, 0, 0)
        self._reached = self._left = False
        found = rate_headers(plan.accounts, now)
        warning = budget_warning(plan.accounts)
        if warning:
            found["x-florin-budget-warning"] = warning
        self.headers = [(name.encode(), value.encode()) for name, value in found.items()]

    def count(self, prompt: int, cached: int, completion: int, *, choices: int) -> None:
        """Add what an attempt used; zeros if it does not count."""
        before = self._tokens
        self._tokens = before[0] + prompt, before[1] + cached, before[2] + completion
        self._reached = True
        if completion:
            self._plan.history.learn(-(-completion // choices))

    async def leave(self) -> None:
        """Give the request's place among the concurrent ones back, before its answer ends: a client may send
        its next request at once, and to another worker. Idempotent."""
        told = [task for task in self._leave() if task is not None]
        if told:
            await asyncio.wait(told, timeout=_LEAVE_SECONDS)

    def _leave(self) -> list[asyncio.Task[None] | None]:
        if self._held is None or self._left:
            return []
        self._left = True
        return [account.leave() for account, _, _ in self._held]

    def settle(self) -> None:
        """Give back what was reserved, and count what was used. A request that no engine got counts as
        none. Idempotent."""
        self._leave()
        held, self._held = self._held, None
        if held is None:
            return
        prompt, cached, completion = self._tokens
        tokens, price = prompt + completion, self._plan.price
        money = price.cost(prompt, cached, completion) if price else 0
        used = (int(self._reached), tokens, tokens, tokens, money, money)
        for account, flows, taken in held:
            account.settle(flows, taken, used)


class Unlimited(Grant):
    """For requests without limits. It holds nothing, so all share one."""

    __slots__ = ()

    def __init__(self) -> None:
        self._held, self.headers = None, []

    async def leave(self) -> None:
        pass

    def count(self, prompt: int, cached: int, completion: int, *, choices: int) -> None:
        pass


UNLIMITED: Final = Unlimited()


def reserve(plan: Plan, need: Need, now: float) -> Grant:
    """Reserve what the request is expected to need, whether this worker's shares cover it or not."""
    held = []
    for account in plan.accounts:
        taken = account.need(need.expected)
        account.reserve(taken)
        held.append((account, taken))
    return Grant(plan, held, now)

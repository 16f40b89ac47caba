"""Virtual token counters: how much service each tenant has had (Sheng et al., Fairness in Serving Large
Language Models, OSDI 2024). Pure.

A tenant's counter grows by the weighted tokens that it is served, W_IN for each of the prompt and W_OUT for
each of the answer, divided by the tenant's weight. The tenant with the lowest counter goes next. One that
starts to wait is lifted to the lowest counter of those that wait already, so that nobody saves up service.

Workers keep the same counters: each tells the total that it has served, and adds what the others have served
since it last heard them. Totals survive lost reports.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from typing import Final

W_IN: Final = 1
W_OUT: Final = 2
MEMORY: Final = 0.9
"""Weight of a tenant's earlier answers in the expected length of its next one."""
RECENT_SECONDS: Final = 60.0
FORGET_SECONDS: Final = 600.0
"""Time without service after which a tenant's counter is dropped: it would be lifted anyway."""


def service(prompt: int, output: float) -> float:
    """Weighted tokens."""
    return W_IN * prompt + W_OUT * output


@dataclass(slots=True)
class Account:
    """One tenant's service. Mutable; `Counters` changes it."""

    weight: float = 1.0
    counter: float = 0.0
    given: float = 0.0
    """Weighted tokens that this worker has served, ever."""
    output: float = 0.0
    """Expected tokens of its next answer."""
    used: float = 0.0
    """Time of its last service."""
    recent: float = 0.0
    """Weighted tokens on all workers, of which half are forgotten in RECENT_SECONDS; as of `used`."""
    heard: dict[str, float] = field(default_factory=dict)
    """Other worker → `given` there, as last heard."""

    def recent_at(self, now: float) -> float:
        return float(self.recent * 0.5 ** ((now - self.used) / RECENT_SECONDS))

    def answered(self, output: int) -> None:
        """An answer of this length has ended well."""
        self.output = self.output * MEMORY + output * (1 - MEMORY) if self.output else output


class Counters:
    """The tenants of one fleet and class, as one worker knows them. Mutable."""

    def __init__(self) -> None:
        self.accounts: dict[str, Account] = {}
        self.floor = 0.0
        """The counter of the last tenant that waited: new ones are lifted to it while nobody waits."""
        self.served = 0.0
        """Weighted tokens of all tenants on all workers, as far as heard."""

    def __repr__(self) -> str:
        counters = {name: round(account.counter) for name, account in self.accounts.items()}
        return f"<Counters {counters}>"

    def account(self, tenant: str, weight: float = 1.0) -> Account:
        account = self.accounts.get(tenant)
        if account is None:
            account = self.accounts[tenant] = Account(weight, self.floor)
        return account

    def lift(self, tenant: str, weight: float, lowest: float | None) -> None:
        """The tenant starts to wait. `lowest`: the lowest counter of those that wait, on any worker; None:
        none does."""
        account = self.account(tenant)
        account.weight = weight
        account.counter = max(account.counter, self.floor if lowest is None else lowest)

    def emptied(self, tenant: str) -> None:
        """The last tenant has stopped waiting."""
        self.floor = max(self.floor, self.account(tenant).counter)

    def charge(self, tenant: str, tokens: float, now: float) -> None:
        """Weighted tokens; below 0 to correct earlier charges."""
        account = self.account(tenant)
        account.given += tokens
        self.serve(account, tokens, now)

    def serve(self, account: Account, tokens: float, now: float) -> None:
        """A tenant was served, here or on another worker."""
        account.counter += tokens / account.weight
        account.recent = account.recent * 0.5 ** ((now - account.used) / RECENT_SECONDS) + tokens
        account.used = now
        self.served += tokens

    def hear(self, worker: str, tenant: str, weight: float, given: float, counter: float, now: float) -> None:
        """What another worker has served a tenant in all, and its counter there, which a tenant that is new
        here takes over."""
        account = self.accounts.get(tenant)
        if account is None:
            account = self.accounts[tenant] = Account(weight, counter, used=now)
        elif (last := account.heard.get(worker)) is not None:
            more = given - last if given >= last / 2 else given  # far less: the worker has forgotten it
            if more:
                self.serve(account, more, now)
        account.heard[worker] = given

    def forget(self, now: float, keep: Container[str]) -> None:
        """Drop the tenants without service for long, except those to `keep`."""
        idle = [t for t, a in self.accounts.items() if now - a.used > FORGET_SECONDS and t not in keep]
        for tenant in idle:
            del self.accounts[tenant]

    def forget_workers(self, living: Iterable[str]) -> None:
        living = set(living)
        for account in self.accounts.values():
            for worker in account.heard.keys() - living:
                del account.heard[worker]

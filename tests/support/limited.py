"""Workers whose limiters run on a store and a clock of the test's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from adapters.errors import StoreUnavailableError
from adapters.store.protocol.limits import Share
from gateway.config import Settings
from gateway.dataplane.request import CHAT, Call, Sold
from gateway.tenants.directory import Directory, Key, Role, Tenant
from gateway.tenants.limits.allowances import Allowance, Consumer, Counter, scopes_of, standing
from gateway.tenants.limits.grant import Grant
from gateway.tenants.limits.limiter import Limiter
from gateway.tenants.limits.needs import TokenPrice
from gateway.tenants.limits.subject_account import REPORT_SECONDS, Account
from gateway.tenants.terms import NO_BUDGET, NO_LIMITS, Budget, Limits
from tests.doubles.memory_store import MemoryStore

START_MS = 1_795_000_000_000


def call(prompt: int = 10, most: int | None = 20, *, size: int = 0, n: int = 1, text: str = "hello") -> Call:
    """A chat request of `prompt` estimated tokens that asks for at most `most`."""
    body: dict[str, Any] = {"messages": [{"role": "user", "content": text}]}
    if most is not None:
        body["max_tokens"] = most
    return Call(
        CHAT, body, "support", stream=False, n=n, prompts=1, include_usage=False, continuous_usage=False,
        user="", unknown=0, unknown_names=(), scored="", estimate=prompt, size=size or prompt,
    )  # fmt: skip


class Flaky:
    """A store that loses the next calls, before or after they take effect."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.lose: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def lease(self, *arguments: Any, **how: Any) -> Any:
        lost = self.lose.pop(0) if self.lose else ""
        if lost == "request":
            raise StoreUnavailableError("lost: the test says so")
        answer = await self._store.lease(*arguments, **how)
        if lost == "reply":
            raise StoreUnavailableError("its reply was lost: the test says so")
        return answer


@dataclass
class Refusals:
    seen: list[tuple[str, str]] = field(default_factory=list)

    def limit_refusal(self, tenant: str, limit: str, level: str, *, shadow: bool) -> None:
        self.seen.append((tenant, f"{'shadow ' if shadow else ''}{level} {limit}"))


class FixedPrices:
    """What everybody pays: 1 per million input tokens, 10 per million output tokens."""

    price = TokenPrice(10**9, 10**9, 10**10, 10**10)

    def of(self, tenant: str, sold: Sold, gpu_type: str | None) -> TokenPrice:
        del tenant, sold, gpu_type
        return self.price

    def currency(self, tenant: str) -> str:
        del tenant
        return "USD"


class Workers:
    """Several workers of one installation, and one tenant with one key."""

    def __init__(
        self,
        limits: Limits = NO_LIMITS,
        budget: Budget = NO_BUDGET,
        *,
        key_limits: Limits = NO_LIMITS,
        count: int = 2,
        used: int = 0,
        **settings: Any,
    ) -> None:
        self.ms = START_MS
        self.store = MemoryStore(clock=lambda: self.ms)
        self.tenant = Tenant("acme", base_access=False, created=0, limits=limits, budget=budget)
        self.key = Key("k1", "acme", Role.TENANT, "digest", 0, limits=key_limits)
        self.directory = Directory()
        self.directory.tenants["acme"], self.directory.keys["k1"] = self.tenant, self.key
        self.settings = Settings(**settings)
        self.refusals = Refusals()
        self.used = used
        """What the ledger says of each budget."""
        self._made = 0
        self.limiters: list[Limiter] = []
        self.stores: list[Flaky] = []
        for _ in range(count):
            self.add()

    def add(self) -> Limiter:
        self._made += 1
        store = Flaky(self.store)
        limiter = Limiter(
            store,
            f"w{self._made}",
            self.directory,
            self.settings,
            self.refusals,
            FixedPrices(),
            used=self._used,
            now=lambda: self.ms * 1000,
            clock=self.clock,
        )
        self.limiters.append(limiter)
        self.stores.append(store)
        return limiter

    def kill(self, index: int) -> None:
        """The worker dies with all its requests; another takes its place."""
        del self.limiters[index], self.stores[index]
        self.add()

    def clock(self) -> float:
        return (self.ms - START_MS) / 1000

    async def _used(self, consumer: Consumer, counters: Sequence[Counter], terms: Allowance) -> list[int]:
        del consumer, terms
        return [self.used] * len(counters)

    def account(self, index: int, subject: str = "tenant:acme") -> Account:
        return self.limiters[index].counters.accounts[subject]

    async def share(self, subject: str = "tenant:acme") -> dict[str, Share]:
        """What the store has of each of the subject's counters: one share for each, of that counter alone."""
        scopes = scopes_of(self.tenant, self.key, None)
        divided = [(scope.subject("ann", ""), None, scope.allowance) for scope in scopes]
        rows = [*standing(self.directory, lambda tenant: tenant.budget), *divided]
        allowance = next(terms for name, _, terms in rows if name == subject)
        flows = allowance.flows(self.ms * 1000)
        looks = [(subject, (flow,), (limit,)) for flow, limit in zip(flows, allowance.limits, strict=True)]
        return dict(zip([flow.name for flow in flows], await self.store.looks(looks), strict=True))

    async def enter(
        self,
        index: int,
        request: Call,
        *,
        again: bool = False,
        adapter: str = "acme/support",
        headers: Sequence[tuple[bytes, bytes]] = (),
    ) -> Grant:
        limiter = self.limiters[index % len(self.limiters)]
        sent = [*headers, *([(b"x-stainless-retry-count", b"1")] if again else [])]
        request.sold = Sold(adapter)
        grant = limiter.enter(self.tenant, self.key, request, sent)
        return grant or await limiter.wait(self.key, request, sent)

    async def pass_time(self, ms: int) -> None:
        """Time passes, and the workers report."""
        step = int(REPORT_SECONDS * 1000)
        until = self.ms + ms
        while self.ms < until:
            self.ms = min(until, self.ms + step)
            for limiter in list(self.limiters):
                if not limiter.counters.away_now:
                    await limiter.counters.flush()

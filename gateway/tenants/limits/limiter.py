"""Admits requests within the limits and budgets of their tenants and keys, over all workers.

The counters are in the store (`adapters.store.protocol.limits`), of which this worker leases shares. If the
shares of its tenant and its key suffice, a request is admitted at once; otherwise it waits for one call of
the store. Tokens are reserved on entry and settled at the request's end, so what a tenant uses beyond its
limits is at most what its requests in flight use beyond their reservations.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from hashlib import blake2b
from typing import Final, Protocol

import orjson

from adapters.errors import StoreUnavailableError
from adapters.store.protocol.limits import FLOWS, RATES, Answer, LimitStore, Verdict
from gateway.config import Settings
from gateway.dataplane.request import Call
from gateway.errors import FlorinError
from gateway.tenants.directory import Directory, Key, Tenant
from gateway.tenants.limits.grant import UNLIMITED, Grant, Plan, reserve
from gateway.tenants.limits.needs import Bounds, Need, OutputHistory, need_of, price_for
from gateway.tenants.limits.subject_account import REPORT_SECONDS, Account
from gateway.tenants.limits.wording import CONCURRENT, NAMES, rate_headers, refusal
from gateway.tenants.terms import NO_LIMITS

log = logging.getLogger(__name__)

LEASE_MS: Final = 5_000
"""How long a worker that falls silent keeps its slots."""
AWAY_SECONDS: Final = 0.5
"""Between attempts to reach a store that is away."""
ATTEMPT_SECONDS: Final = 3.0
"""An attempt ends earlier. Meanwhile, nobody else makes one."""
SLOT_PAUSES: Final = (0.05, 0.1, 0.25)
"""While another worker has a slot to spare, which it gives back with its next report."""
SEED_SECONDS: Final = 2.0
"""How long a request waits for the ledger to say what a budget has used."""
BATCH: Final = 50
"""Subjects in one report: the store does nothing else meanwhile."""
_RETRIED: Final = b"x-stainless-retry-count"
"""OpenAI's clients send it with a request that they repeat."""

Used = Callable[[str, tuple[int, ...]], Awaitable[Mapping[int, int]]]
"""What a subject has used of these flows in their present periods, as the ledger says. Raises
StoreUnavailableError if it cannot say."""


class LimitMetrics(Protocol):
    def limit_refusal(self, tenant: str, limit: str) -> None: ...


class Limiter:
    """One worker's limits. `enter` admits a request at once if it can; otherwise await `wait`.

    Both raise the FlorinError of a refusal. `run` reports to the store. On the worker's event loop only.
    """

    def __init__(
        self,
        store: LimitStore,
        worker: str,
        directory: Directory,
        settings: Settings,
        metrics: LimitMetrics,
        *,
        used: Used,
        now: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`used`: for budgets of which the store knows nothing. `now`: Unix microseconds."""
        self._store = store
        self._worker = worker
        self._directory = directory
        self._settings = settings
        self._metrics = metrics
        self._used = used
        self._now = now
        self._clock = clock
        # Mutable: by key id, by subject, by tenant.
        self._plans: dict[str, Plan] = {}
        self._accounts: dict[str, Account] = {}
        self._histories: dict[str, OutputHistory] = {}
        self._seeding: dict[str, asyncio.Task[None]] = {}
        self._reporting: dict[str, asyncio.Task[None]] = {}
        self._away_until = 0.0
        self.away = False
        """Whether the store was away when it was last asked."""

    def __repr__(self) -> str:
        return f"<Limiter {len(self._accounts)} subjects{', store away' if self.away else ''}>"

    def reconfigure(self, settings: Settings) -> None:
        self._settings = settings
        self._plans.clear()  # prices may have changed

    # -- the way in

    def enter(self, tenant: Tenant, key: Key, call: Call) -> Grant | None:
        """Admit the request if this worker's shares suffice; None: `wait`."""
        plan = self._plans.get(key.id)
        if plan is None or plan.tenant is not tenant or plan.key is not key:
            plan = self._plan(tenant, key)
        if plan.bounds is not None:
            self._bound(plan, call)
        if not plan.accounts:
            return UNLIMITED
        return self._take(plan, need_of(call, plan.history, plan.price))

    async def wait(self, key: Key, call: Call, headers: list[tuple[bytes, bytes]]) -> Grant:
        """Admit the request once the store has granted what it needs, or refuse it. Call it in a scope, right
        after `enter` returned None."""
        plan = self._plans[key.id]
        need = need_of(call, plan.history, plan.price)
        digest = blake2b(key.id.encode() + orjson.dumps(call.body), digest_size=8).hexdigest()
        again = any(name == _RETRIED and value != b"0" for name, value in headers)
        pauses = iter(SLOT_PAUSES)
        seeded = False
        while True:
            answer: Answer | None = None
            if self._clock() < self._away_until:
                return self._without_store(plan, need)
            async with contextlib.AsyncExitStack() as stack:
                for account in plan.accounts:
                    await stack.enter_async_context(account.lock)
                grant = self._take(plan, need)
                if grant is not None:
                    return grant
                if self._clock() < self._away_until:  # as another request has found meanwhile
                    return self._without_store(plan, need)
                self._spare_the_store(plan, digest)
                try:
                    answer, grant = await self._lease(plan, need, digest, again=again)
                except StoreUnavailableError as error:
                    self._note_away(error)
                    return self._without_store(plan, need)
            if grant is not None:
                return grant
            if answer.verdict is Verdict.STALE:
                continue
            account = plan.accounts[answer.subject]
            if answer.verdict is Verdict.UNSEEDED and not seeded:
                seeded = True
                await asyncio.wait([self._seeding_of(account)], timeout=SEED_SECONDS)
                continue
            if answer.verdict is Verdict.UNSEEDED:
                return self._without_store(plan, need)
            if answer.verdict is Verdict.SLOTS and answer.shares[answer.subject].idle_slots > 0:
                pause = next(pauses, None)
                if pause is not None:
                    await asyncio.sleep(pause)
                    continue
            raise self._refuse(plan, account, answer)

    def _take(self, plan: Plan, need: Need) -> Grant | None:
        now = self._clock()
        for account in plan.accounts:
            if not account.covers(need, now):
                return None
        return reserve(plan, need, now)

    def _bound(self, plan: Plan, call: Call) -> None:
        assert plan.bounds is not None
        try:
            plan.bounds.apply(call)
        except FlorinError as error:
            limit = "max_output" if error.code == "max_output_exceeded" else "max_context"
            self._metrics.limit_refusal(plan.tenant.name, limit)
            raise

    # -- through the store

    async def _lease(
        self, plan: Plan, need: Need, digest: str, *, again: bool
    ) -> tuple[Answer, Grant | None]:
        """One call of the store. Holds the accounts' locks."""
        asked = self._begin_attempt()
        lacking = [account.slots >= 0 and account.held <= account.running for account in plan.accounts]
        reports = []
        for account, lacks in zip(plan.accounts, lacking, strict=True):
            account.running += not lacks  # so that no other request takes the slot meanwhile
            reports.append(account.report(need, slot=lacks))
        try:
            answer = await self._store.lease(
                self._worker, reports, ttl_ms=LEASE_MS, digest=digest, again=again
            )
        finally:  # whatever was granted but not heard is given back by the next report
            for account, lacks in zip(plan.accounts, lacking, strict=True):
                account.running -= not lacks
                account.dirty = True
        now = self._clock()
        self._back()
        for account, share in zip(plan.accounts, answer.shares, strict=bool(answer.shares)):
            account.hear(share, asked=asked, now=now)
        if answer.verdict is not Verdict.GRANTED:
            return answer, None
        for account, taken in zip(plan.accounts, answer.reserved, strict=True):
            account.reserve(taken)
            account.refused = None
        return answer, Grant(plan, list(zip(plan.accounts, answer.reserved, strict=True)), now)

    def _spare_the_store(self, plan: Plan, digest: str) -> None:
        """Refuse without a call, if the store refuses anyway and was asked often: but not a request whose
        booking is due. Raises FlorinError."""
        now = self._clock()
        for account in plan.accounts:
            if account.refused is None:
                continue
            verdict, flow, until = account.refused
            if now >= until:
                account.refused = None
            elif not (account.share and digest in account.share.due) and not account.may_call(now):
                raise self._refusal(plan, account, verdict, flow, until - now)

    def _refuse(self, plan: Plan, account: Account, answer: Answer) -> FlorinError:
        now = self._clock()
        if answer.verdict is Verdict.RATE:
            seconds = answer.wait_ms / 1000
            account.refused = (answer.verdict, answer.flow, now + seconds)
        else:
            seconds = account.slot_seconds()
            account.refused = (answer.verdict, answer.flow, now + REPORT_SECONDS)
        return self._refusal(plan, account, answer.verdict, answer.flow, seconds)

    def _refusal(
        self, plan: Plan, account: Account, verdict: Verdict, flow: int, seconds: float
    ) -> FlorinError:
        limit = CONCURRENT if verdict is Verdict.SLOTS else NAMES[flow]
        self._metrics.limit_refusal(plan.tenant.name, limit)
        if verdict is Verdict.SLOTS:
            seconds = account.slot_seconds()
        headers = rate_headers(plan.accounts, self._clock())
        return refusal(account, verdict, flow, seconds, headers=headers, now_us=self._now())

    def _without_store(self, plan: Plan, need: Need) -> Grant:
        """As FLORIN_LIMITS_WHEN_STORE_AWAY says. What is used meanwhile is reported later."""
        if self._settings.limits_when_store_away == "closed":
            raise FlorinError(
                "store_unavailable", "Your limits cannot be checked now. Try again soon.", retry_after=1
            )
        return reserve(plan, need, self._clock())

    def _begin_attempt(self) -> float:
        """A store that hangs takes long to fail: if it is away, only one request or report waits for it."""
        now = self._clock()
        if self.away:
            self._away_until = now + ATTEMPT_SECONDS
        return now

    def _note_away(self, error: Exception) -> None:
        self._away_until = self._clock() + AWAY_SECONDS
        if not self.away:
            how = self._settings.limits_when_store_away
            log.warning("Limits are %s: %s", "not enforced" if how == "open" else "refusing requests", error)
        self.away = True

    def _back(self) -> None:
        if self.away:
            log.warning("Limits are enforced again")
        self.away, self._away_until = False, 0.0

    # -- budgets that the store has forgotten, or not known yet

    def _seeding_of(self, account: Account) -> asyncio.Task[None]:
        task = self._seeding.get(account.subject)
        if task is None:
            task = self._seeding[account.subject] = asyncio.create_task(self._seed_from_ledger(account))
            task.add_done_callback(lambda _: self._seeding.pop(account.subject, None))
        return task

    async def _seed_from_ledger(self, account: Account) -> None:
        try:
            await self._store.seed(account.subject, await self._used(account.subject, account.budgets))
        except StoreUnavailableError as error:
            log.warning("%s: its budgets are not known: %s", account.subject, error)

    # -- reports

    async def run(self) -> None:
        """Report until cancelled. Call `close` afterwards."""
        while True:
            await asyncio.sleep(REPORT_SECONDS)
            if self._clock() >= self._away_until:
                await self.flush()
            if len(self._plans) > 2 * len(self._directory.keys) + 100:
                self._plans.clear()
                self._forget()

    async def flush(self) -> None:
        """Report every subject that is in use, and renew its shares."""
        now = self._clock()
        due = [a for a in self._accounts.values() if a.due(now) and not a.lock.locked()]
        for start in range(0, len(due), BATCH):
            try:
                await self._report([a for a in due[start : start + BATCH] if not a.lock.locked()])
            except StoreUnavailableError as error:
                self._note_away(error)
                return

    def _report_soon(self, account: Account) -> None:
        """Another worker may wait for what a request gives back."""
        if account.subject not in self._reporting:
            self._reporting[account.subject] = asyncio.create_task(self._report_now(account))

    async def _report_now(self, account: Account) -> None:
        try:
            if account.dirty and not account.lock.locked() and self._clock() >= self._away_until:
                await self._report([account])
        except StoreUnavailableError as error:
            self._note_away(error)
        finally:
            del self._reporting[account.subject]

    async def _report(self, accounts: list[Account]) -> None:
        async with contextlib.AsyncExitStack() as stack:
            for account in accounts:
                await stack.enter_async_context(account.lock)  # without waiting: none was locked
                account.tick()
            asked = self._begin_attempt()
            reports = [account.report() for account in accounts]
            try:
                answer = await self._store.lease(self._worker, reports, ttl_ms=LEASE_MS)
            except BaseException:
                for account in accounts:
                    account.dirty = True
                raise
            self._back()
            now = self._clock()
            for account, share in zip(accounts, answer.shares, strict=bool(answer.shares)):
                account.hear(share, asked=asked, now=now)
                if account.unknown:
                    self._seeding_of(account)

    async def close(self) -> None:
        """Give everything back. What is in flight stays reserved."""
        for account in self._accounts.values():
            account.demand = [0.0] * FLOWS
            account.slot_demand = 0.0
        for task in [*self._reporting.values(), *self._seeding.values()]:
            await asyncio.wait([task])
        await self.flush()

    # -- who has which limits

    def _plan(self, tenant: Tenant, key: Key) -> Plan:
        pairs = (
            (f"key:{key.id}", key.limits, key.budget),
            (f"tenant:{tenant.name}", tenant.limits, tenant.budget),
        )
        accounts = []
        for subject, limits, budget in pairs:
            account = self._accounts.get(subject)
            if account is None:
                account = Account(subject, tenant.name, limits, budget, tell=self._report_soon)
            else:
                account.update(limits, budget)
            if account.flows or account.slots >= 0:
                self._accounts[subject] = account
                accounts.append(account)
        money = any(flow >= RATES + 2 for account in accounts for flow in account.budgets)
        plan = Plan(
            tenant,
            key,
            tuple(accounts),
            _bounds(tenant, key),
            self._histories.setdefault(tenant.name, OutputHistory()),
            price_for(self._settings, tenant.name) if money else None,
        )
        self._plans[key.id] = plan
        return plan

    def _forget(self) -> None:
        """Forget subjects that have left the directory, once they hold nothing."""
        known = {f"key:{k}" for k in self._directory.keys} | {f"tenant:{t}" for t in self._directory.tenants}
        for subject in [s for s, a in self._accounts.items() if s not in known and a.idle]:
            del self._accounts[subject]
        for name in self._histories.keys() - self._directory.tenants.keys():
            del self._histories[name]


def _bounds(tenant: Tenant, key: Key) -> Bounds | None:
    if tenant.limits is NO_LIMITS and key.limits is NO_LIMITS:
        return None
    both = (tenant.limits, key.limits)
    context = min((x.max_context for x in both if x.max_context is not None), default=None)
    output = min((x.max_output for x in both if x.max_output is not None), default=None)
    return None if context is None and output is None else Bounds(context, output)

"""Admits requests within the limits and budgets of their tenants and keys, over all workers.

This worker leases shares of what may still be used (`shared_counters`). If the shares of its tenant and its
key suffice, a request is admitted at once; otherwise it waits for one call of the store. Tokens are reserved
on entry and settled at the request's end, so what a tenant uses beyond its limits is at most what its
requests in flight use beyond their reservations.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from hashlib import blake2b
from typing import Final, Protocol

import orjson

from adapters.errors import StoreUnavailableError
from adapters.store.protocol.limits import RATES, Answer, Flow, LimitStore, Verdict
from gateway.config import Settings
from gateway.dataplane.request import Call
from gateway.errors import FlorinError
from gateway.tenants.directory import Directory, Key, Tenant
from gateway.tenants.limits.grant import UNLIMITED, Grant, Plan, reserve
from gateway.tenants.limits.needs import BOUNDS, Need, OutputHistory, bounds, need_of, price_for
from gateway.tenants.limits.shared_counters import SEED_SECONDS, SharedCounters, Used
from gateway.tenants.limits.subject_account import REPORT_SECONDS, Account
from gateway.tenants.limits.wording import CONCURRENT, NAMES, rate_headers, refusal

log = logging.getLogger(__name__)

SLOT_PAUSES: Final = (0.05, 0.1, 0.25)
"""While another worker has a slot to spare, which it gives back with its next report."""
_RETRIED: Final = b"x-stainless-retry-count"
"""OpenAI's clients send it with a request that they repeat."""


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
        self._directory = directory
        self._settings = settings
        self._metrics = metrics
        self._now = now
        self._clock = clock
        # Mutable: by key id, by tenant.
        self._plans: dict[str, Plan] = {}
        self._histories: dict[str, OutputHistory] = {}
        self.counters = SharedCounters(store, worker, used=used, told=self._note_store, clock=clock)

    def __repr__(self) -> str:
        return f"<Limiter {self.counters!r}>"

    def reconfigure(self, settings: Settings) -> None:
        self._settings = settings
        self._plans.clear()  # prices may have changed

    # -- the way in

    def check_rate(self, key: Key) -> None:
        """Refuse a request of which only the headers are known, if the store refuses requests of its tenant
        or its key for their number, and was asked often. Raises FlorinError."""
        plan = self._plans.get(key.id)
        if plan is None:
            return
        now = self._clock()
        for account in plan.accounts:
            if account.refused is None or (account.share is not None and account.share.due):
                continue  # a request whose booking is due is known by its body
            verdict, flow, until = account.refused
            by_number = verdict is Verdict.RATE and flow == Flow.REQUESTS
            if by_number and now < until and not account.may_call(now, take=False):
                raise self._refusal(plan, account, verdict, flow, until - now)

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
            if self.counters.away_now:
                return self._without_store(plan, need)
            async with contextlib.AsyncExitStack() as stack:
                for account in plan.accounts:
                    await stack.enter_async_context(account.lock)
                grant = self._take(plan, need)
                if grant is not None:
                    return grant
                if self.counters.away_now:  # as another request has found meanwhile
                    return self._without_store(plan, need)
                self._spare_the_store(plan, digest)
                try:
                    answer = await self.counters.lease(plan.accounts, need, digest, again=again)
                except StoreUnavailableError:
                    return self._without_store(plan, need)
            if answer.verdict is Verdict.GRANTED:
                return Grant(plan, list(zip(plan.accounts, answer.reserved, strict=True)), self._clock())
            if answer.verdict is Verdict.STALE:
                continue
            account = plan.accounts[answer.subject]
            if answer.verdict is Verdict.UNSEEDED and not seeded:
                seeded = True
                await asyncio.wait([self.counters.seeding(account)], timeout=SEED_SECONDS)
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
            limit = BOUNDS[error.code]
            self._metrics.limit_refusal(plan.tenant.name, limit)
            raise

    # -- refusals

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

    def _note_store(self, error: StoreUnavailableError | None) -> None:
        """The store does not answer any more; None: it answers again."""
        if error is None:
            log.warning("Limits are enforced again")
            return
        how = self._settings.limits_when_store_away
        log.warning("Limits are %s: %s", "not enforced" if how == "open" else "refusing requests", error)

    # -- reports

    async def run(self) -> None:
        """Report to the store until cancelled. Call `close` afterwards."""
        while True:
            await asyncio.sleep(REPORT_SECONDS)
            if not self.counters.away_now:
                await self.counters.flush()
            if len(self._plans) > 2 * len(self._directory.keys) + 100:
                self._plans.clear()
                self._forget()

    async def close(self) -> None:
        """Give everything back. What is in flight stays reserved."""
        await self.counters.close()

    # -- who has which limits

    def _plan(self, tenant: Tenant, key: Key) -> Plan:
        pairs = (
            (f"key:{key.id}", key.limits, key.budget),
            (f"tenant:{tenant.name}", tenant.limits, tenant.budget),
        )
        accounts = []
        for subject, limits, budget in pairs:
            account = self.counters.account(subject, tenant.name, limits, budget)
            if account is not None:
                accounts.append(account)
        money = any(flow >= RATES + 2 for account in accounts for flow in account.budgets)
        plan = Plan(
            tenant,
            key,
            tuple(accounts),
            bounds(tenant.limits, key.limits),
            self._histories.setdefault(tenant.name, OutputHistory()),
            price_for(self._settings, tenant.name) if money else None,
        )
        self._plans[key.id] = plan
        return plan

    def _forget(self) -> None:
        """Forget subjects that have left the directory, once they hold nothing."""
        known = {f"key:{k}" for k in self._directory.keys} | {f"tenant:{t}" for t in self._directory.tenants}
        self.counters.forget_all_but(known)
        for name in self._histories.keys() - self._directory.tenants.keys():
            del self._histories[name]

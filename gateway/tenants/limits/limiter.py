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
from gateway.tenants.limits.grant import UNLIMITED, AppliedLimits, Grant, reserve
from gateway.tenants.limits.needs import BOUNDS, Need, OutputHistory, Prices, bounds, need_of
from gateway.tenants.limits.shared_counters import SEED_SECONDS, SharedCounters, Used
from gateway.tenants.limits.subject_account import REPORT_SECONDS, Account
from gateway.tenants.limits.wording import CONCURRENT, NAMES, rate_headers, refusal
from gateway.tenants.terms import Budget

log = logging.getLogger(__name__)

SLOT_PAUSES: Final = (0.05, 0.1, 0.25)
"""Seconds between attempts while another worker has a free slot, which it gives back with its next report."""
_RETRIED: Final = b"x-stainless-retry-count"
"""OpenAI's clients send it when they retry a request."""


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
        prices: Prices,
        *,
        used: Used,
        now: Callable[[], int],
        budget_of: Callable[[Tenant], Budget] = lambda tenant: tenant.budget,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`used`: for budgets of which the store knows nothing. `now`: Unix microseconds.
        `budget_of`: a tenant's budget at present; see `forget_terms`."""
        self._directory = directory
        self._settings = settings
        self._metrics = metrics
        self._prices = prices
        self._now = now
        self._budget_of = budget_of
        self._clock = clock
        # Mutable: by key id, by tenant.
        self._applied: dict[str, AppliedLimits] = {}
        self._histories: dict[str, OutputHistory] = {}
        self.counters = SharedCounters(store, worker, used=used, notify=self._note_store, clock=clock)

    def __repr__(self) -> str:
        return f"<Limiter {self.counters!r}>"

    def reconfigure(self, settings: Settings) -> None:
        self._settings = settings

    def forget_terms(self) -> None:
        """Budgets have changed: the next request of each key has the new ones."""
        self._applied.clear()

    # -- the way in

    def check_rate(self, key: Key) -> None:
        """Refuse a request of which only the headers are known, if the store refuses requests of its tenant
        or its key for their number, and was asked often. Raises FlorinError."""
        applied = self._applied.get(key.id)
        if applied is None:
            return
        now = self._clock()
        for account in applied.accounts:
            if account.refused is None or (account.share is not None and account.share.due):
                continue  # a request whose booking is due is known by its body
            verdict, flow, until = account.refused
            by_number = verdict is Verdict.RATE and flow == Flow.REQUESTS
            if by_number and now < until and not account.may_call(now, take=False):
                raise self._refusal(applied, account, verdict, flow, until - now)

    def enter(self, tenant: Tenant, key: Key, call: Call) -> Grant | None:
        """Admit the request if this worker's shares suffice; None: `wait`."""
        applied = self._applied.get(key.id)
        if applied is None or applied.tenant is not tenant or applied.key is not key:
            applied = self._applied_limits(tenant, key)
        if applied.bounds is not None:
            self._bound(applied, call)
        if not applied.accounts:
            return UNLIMITED
        return self._take(applied, self._need(applied, call))

    async def wait(self, key: Key, call: Call, headers: list[tuple[bytes, bytes]]) -> Grant:
        """Admit the request once the store has granted what it needs, or refuse it. Call it in a scope, right
        after `enter` returned None."""
        applied = self._applied[key.id]
        need = self._need(applied, call)
        digest = blake2b(key.id.encode() + orjson.dumps(call.body), digest_size=8).hexdigest()
        again = any(name == _RETRIED and value != b"0" for name, value in headers)
        pauses = iter(SLOT_PAUSES)
        seeded = False
        while True:
            if self.counters.away_now:
                return self._without_store(applied, need)
            async with contextlib.AsyncExitStack() as stack:
                for account in applied.accounts:
                    await stack.enter_async_context(account.lock)
                grant = self._take(applied, need)
                if grant is not None:
                    return grant
                if self.counters.away_now:  # as another request has found meanwhile
                    return self._without_store(applied, need)
                self._spare_the_store(applied, digest)
                try:
                    answer = await self.counters.lease(applied.accounts, need, digest, again=again)
                except StoreUnavailableError:
                    return self._without_store(applied, need)
            if answer.verdict is Verdict.GRANTED:
                reserved = list(zip(applied.accounts, answer.reserved, strict=True))
                return Grant(applied, reserved, self._clock(), need.sold)
            if answer.verdict is Verdict.STALE:
                continue
            account = applied.accounts[answer.subject]
            if answer.verdict is Verdict.UNSEEDED and not seeded:
                seeded = True
                await asyncio.wait([self.counters.seeding(account)], timeout=SEED_SECONDS)
                continue
            if answer.verdict is Verdict.UNSEEDED:
                return self._without_store(applied, need)
            if answer.verdict is Verdict.SLOTS and answer.shares[answer.subject].idle_slots > 0:
                pause = next(pauses, None)
                if pause is not None:
                    await asyncio.sleep(pause)
                    continue
            raise self._refuse(applied, account, answer)

    def _need(self, applied: AppliedLimits, call: Call) -> Need:
        if applied.prices is None:
            return need_of(call, applied.history, None)
        price = applied.prices.of(applied.tenant.name, call.sold, None)
        return need_of(call, applied.history, price)

    def _take(self, applied: AppliedLimits, need: Need) -> Grant | None:
        now = self._clock()
        for account in applied.accounts:
            if not account.covers(need, now):
                return None
        return reserve(applied, need, now)

    def _bound(self, applied: AppliedLimits, call: Call) -> None:
        assert applied.bounds is not None
        try:
            applied.bounds.apply(call)
        except FlorinError as error:
            limit = BOUNDS[error.code]
            self._metrics.limit_refusal(applied.tenant.name, limit)
            raise

    # -- refusals

    def _spare_the_store(self, applied: AppliedLimits, digest: str) -> None:
        """Refuse without a call, if the store refuses anyway and was asked often: but not a request whose
        booking is due. Raises FlorinError."""
        now = self._clock()
        for account in applied.accounts:
            if account.refused is None:
                continue
            verdict, flow, until = account.refused
            if now >= until:
                account.refused = None
            elif not (account.share and digest in account.share.due) and not account.may_call(now):
                raise self._refusal(applied, account, verdict, flow, until - now)

    def _refuse(self, applied: AppliedLimits, account: Account, answer: Answer) -> FlorinError:
        now = self._clock()
        if answer.verdict is Verdict.RATE:
            seconds = answer.wait_ms / 1000
            account.refused = (answer.verdict, answer.flow, now + seconds)
        else:
            seconds = account.slot_seconds()
            account.refused = (answer.verdict, answer.flow, now + REPORT_SECONDS)
        return self._refusal(applied, account, answer.verdict, answer.flow, seconds)

    def _refusal(
        self, applied: AppliedLimits, account: Account, verdict: Verdict, flow: int, seconds: float
    ) -> FlorinError:
        limit = CONCURRENT if verdict is Verdict.SLOTS else NAMES[flow]
        self._metrics.limit_refusal(applied.tenant.name, limit)
        if verdict is Verdict.SLOTS:
            seconds = account.slot_seconds()
        headers = rate_headers(applied.accounts, self._clock())
        return refusal(account, verdict, flow, seconds, headers=headers, now_us=self._now())

    def _without_store(self, applied: AppliedLimits, need: Need) -> Grant:
        """As FLORIN_LIMITS_WHEN_STORE_AWAY says. What is used meanwhile is reported later."""
        if self._settings.limits_when_store_away == "closed":
            raise FlorinError(
                "store_unavailable", "Your limits cannot be checked now. Try again soon.", retry_after=1
            )
        return reserve(applied, need, self._clock())

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
            if len(self._applied) > 2 * len(self._directory.keys) + 100:
                self._applied.clear()
                self._forget()

    async def close(self) -> None:
        """Give everything back. What is in flight stays reserved."""
        await self.counters.close()

    # -- who has which limits

    def _applied_limits(self, tenant: Tenant, key: Key) -> AppliedLimits:
        pairs = (
            (f"key:{key.id}", key.limits, key.budget),
            (f"tenant:{tenant.name}", tenant.limits, self._budget_of(tenant)),
        )
        accounts = []
        for subject, limits, budget in pairs:
            account = self.counters.account(subject, tenant.name, limits, budget)
            if account is not None:
                accounts.append(account)
        money = any(flow >= RATES + 2 for account in accounts for flow in account.budgets)
        applied = AppliedLimits(
            tenant,
            key,
            tuple(accounts),
            bounds(tenant.limits, key.limits),
            self._histories.setdefault(tenant.name, OutputHistory()),
            self._prices if money else None,
        )
        self._applied[key.id] = applied
        return applied

    def _forget(self) -> None:
        """Forget subjects that have left the directory, once they hold nothing."""
        known = {f"key:{k}" for k in self._directory.keys} | {f"tenant:{t}" for t in self._directory.tenants}
        self.counters.forget_all_but(known)
        for name in self._histories.keys() - self._directory.tenants.keys():
            del self._histories[name]

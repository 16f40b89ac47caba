"""Admits requests within the limits of their tenants, keys, adapters, end users and tags, over all workers.

This worker leases shares of what may still be used (`shared_counters`). If the shares of all subjects to
which it belongs suffice, a request is admitted at once; otherwise it waits for one call of the store. Tokens
are reserved on entry and settled at the request's end, so what a tenant uses beyond its limits is at most
what its requests in flight use beyond their reservations.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from hashlib import blake2b
from typing import Final, Protocol

import orjson

from adapters.errors import StoreUnavailableError
from adapters.store.protocol.limits import Answer, LimitStore, Verdict
from gateway.config import Settings
from gateway.dataplane.labels import label_of
from gateway.dataplane.request import Call
from gateway.errors import FlorinError
from gateway.tenants.directory import Directory, Key, Tenant
from gateway.tenants.limits.allowances import (
    CONCURRENT,
    Counter,
    as_of_now,
    scopes_of,
    standing,
    standing_of_key,
    standing_of_organization,
    standing_of_tenant,
)
from gateway.tenants.limits.grant import UNLIMITED, AppliedLimits, Grant, reserve
from gateway.tenants.limits.needs import BOUNDS, Need, OutputHistory, Prices, bounds, need_of
from gateway.tenants.limits.shared_counters import SEED_SECONDS, SharedCounters, Used
from gateway.tenants.limits.subject_account import REPORT_SECONDS, Account
from gateway.tenants.limits.wording import rate_headers, refusal
from gateway.tenants.terms import Budget, Level, Measure

log = logging.getLogger(__name__)

SLOT_PAUSES: Final = (0.05, 0.1, 0.25)
"""Seconds between attempts while another worker has a free slot, which it gives back with its next report."""
_RETRIED: Final = b"x-stainless-retry-count"
"""OpenAI's clients send it when they retry a request."""


SESSION_HEADER: Final = b"x-florin-session"
"""Names a request's session, where its `metadata.session` does not."""

Headers = list[tuple[bytes, bytes]]


class LimitMetrics(Protocol):
    def limit_refusal(self, tenant: str, limit: str, level: str, *, shadow: bool) -> None: ...


_NO_HEADERS: Final[Headers] = []


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
        self._generation = -1
        """The directory's, when the above was made."""
        self._histories: dict[str, OutputHistory] = {}
        self.counters = SharedCounters(
            store,
            worker,
            used=used,
            notify=self._note_store,
            now=now,
            clock=clock,
            most=settings.max_tenant_users,
        )

    def __repr__(self) -> str:
        return f"<Limiter {self.counters!r}>"

    def reconfigure(self, settings: Settings) -> None:
        self._settings = settings
        self.counters.most = settings.max_tenant_users

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
            verdict, counter, until = account.refused
            by_number = verdict is Verdict.RATE and counter is not None and counter.unit == 0
            if by_number and now < until and not account.may_call(now, take=False):
                raise self._refusal(applied, account, verdict, counter, until - now)

    def enter(self, tenant: Tenant, key: Key, call: Call, headers: Headers = _NO_HEADERS) -> Grant | None:
        """Admit the request if this worker's shares suffice; None: `wait`."""
        if self._generation != self._directory.generation:
            self._applied.clear()
            self._generation = self._directory.generation
        applied = self._applied.get(key.id)
        if applied is None:
            applied = self._applied_limits(tenant, key)
        if applied.unlimited:
            return UNLIMITED
        if applied.bounds is not None:
            self._bound(applied, call)
        if applied.scopes:
            applied = self._for_call(applied, call, headers)
        if not applied.accounts and not applied.shadows:
            return UNLIMITED
        return self._take(applied, self._need(applied, call))

    async def wait(self, key: Key, call: Call, headers: Headers) -> Grant:
        """Admit the request once the store has granted what it needs, or refuse it. Call it in a scope, right
        after `enter` returned None."""
        applied = self._for_call(self._applied[key.id], call, headers)
        need = self._need(applied, call)
        digest = blake2b(key.id.encode() + orjson.dumps(call.body), digest_size=8).hexdigest()
        again = any(name == _RETRIED and value != b"0" for name, value in headers)
        if applied.accounts:
            grant = await self._wait(applied, need, digest, again=again)
        else:
            grant = reserve(applied, need, self._clock())
        for account in applied.shadows:
            await self._shadow(account, need, grant)
        return grant

    async def _wait(  # noqa: PLR0912  # the answers of the store, one after the other
        self, applied: AppliedLimits, need: Need, digest: str, *, again: bool
    ) -> Grant:
        """Admit it to all that may refuse it."""
        pauses = iter(SLOT_PAUSES)
        seeded: set[str] = set()
        while True:
            if self.counters.away_now:
                return self._without_store(applied, need)
            async with contextlib.AsyncExitStack() as stack:
                for account in applied.accounts:
                    await stack.enter_async_context(account.lock)
                now = self._clock()
                if all(account.covers(need, now) for account in applied.accounts):
                    return reserve(applied, need, now)
                if self.counters.away_now:  # as another request has found meanwhile
                    return self._without_store(applied, need)
                self._spare_the_store(applied, digest)
                try:
                    answer = await self.counters.lease(applied.accounts, need, digest, again=again)
                except StoreUnavailableError:
                    return self._without_store(applied, need)
                if answer.verdict is Verdict.GRANTED:
                    granted = zip(applied.accounts, answer.reserved, strict=True)
                    reservations = [account.take_granted(taken) for account, taken in granted]
                    return Grant(applied, reservations, self._clock(), need.sold)
            if answer.verdict is Verdict.STALE:
                continue
            account = applied.accounts[answer.subject]
            if answer.verdict is Verdict.CROWDED:
                applied = self._with_others(applied, account)
                continue
            if answer.verdict is Verdict.UNSEEDED and account.subject not in seeded:
                seeded.add(account.subject)
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
        if not applied.shadows:
            return reserve(applied, need, now)
        covered = [account.covers(need, now) for account in applied.shadows]
        for account, is_covered in zip(applied.shadows, covered, strict=True):
            if not is_covered and not _refuses(account, now):
                return None
        grant = reserve(applied, need, now)
        for account, is_covered in zip(applied.shadows, covered, strict=True):
            if is_covered:
                grant.add(account.take(need.expected))
            else:
                self._note_shadow(account)
        return grant

    # -- limits in shadow

    async def _shadow(self, account: Account, need: Need, grant: Grant) -> None:
        """Count an admitted request in limits that refuse nothing, or that they would have refused it. One
        that they would have refused uses nothing of them."""
        async with account.lock:
            now = self._clock()
            if account.covers(need, now):
                grant.add(account.take(need.expected))
                return
            if _refuses(account, now):
                self._note_shadow(account)
                return
            if self.counters.away_now:
                return
            try:
                answer = await self.counters.lease((account,), need, "", again=False)
            except StoreUnavailableError:
                return
            if answer.verdict is Verdict.GRANTED:
                grant.add(account.take_granted(answer.reserved[0]))
            elif answer.verdict is Verdict.UNSEEDED:
                self.counters.seeding(account)
            elif answer.verdict not in {Verdict.STALE, Verdict.CROWDED}:
                seconds = answer.wait_ms / 1000 if answer.verdict is Verdict.RATE else REPORT_SECONDS
                until = self._clock() + min(seconds, REPORT_SECONDS)
                account.refused = answer.verdict, account.refusing(answer), until
                self._note_shadow(account)

    def _note_shadow(self, account: Account) -> None:
        assert account.refused is not None
        counter = account.refused[1]
        limit = counter.name if counter else CONCURRENT
        self.counters.note_refusal(account.consumer, limit)
        self._metrics.limit_refusal(account.consumer.tenant, limit, account.consumer.level, shadow=True)

    def _bound(self, applied: AppliedLimits, call: Call) -> None:
        assert applied.bounds is not None
        try:
            applied.bounds.apply(call)
        except FlorinError as error:
            limit = BOUNDS[error.code]
            self._metrics.limit_refusal(applied.tenant.name, limit, "request", shadow=False)
            raise

    # -- refusals

    def _spare_the_store(self, applied: AppliedLimits, digest: str) -> None:
        """Refuse without a call, if the store refuses anyway and was asked often: but not a request whose
        booking is due. Raises FlorinError."""
        now = self._clock()
        for account in applied.accounts:
            if account.refused is None:
                continue
            verdict, counter, until = account.refused
            if now >= until:
                account.refused = None
            elif not (account.share and digest in account.share.due) and not account.may_call(now):
                raise self._refusal(applied, account, verdict, counter, until - now)

    def _refuse(self, applied: AppliedLimits, account: Account, answer: Answer) -> FlorinError:
        now = self._clock()
        if answer.verdict is Verdict.RATE:
            seconds = answer.wait_ms / 1000
            account.refused = (answer.verdict, account.refusing(answer), now + seconds)
        else:
            seconds = account.slot_seconds()
            account.refused = (answer.verdict, account.refusing(answer), now + REPORT_SECONDS)
        return self._refusal(applied, account, answer.verdict, account.refusing(answer), seconds)

    def _refusal(
        self,
        applied: AppliedLimits,
        account: Account,
        verdict: Verdict,
        counter: Counter | None,
        seconds: float,
    ) -> FlorinError:
        limit = counter.name if counter else CONCURRENT
        self._metrics.limit_refusal(applied.tenant.name, limit, account.consumer.level, shadow=False)
        if verdict is Verdict.SLOTS:
            seconds = account.slot_seconds()
        headers = rate_headers(applied.accounts, self._clock())
        return refusal(account, verdict, counter, seconds, headers=headers, now_us=self._now())

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
        tenant = as_of_now(tenant, self._budget_of)
        organization = self._directory.organization(tenant)
        rows = [*standing_of_key(tenant, key), *standing_of_tenant(tenant)]
        rows += standing_of_organization(organization) if organization else []
        rows.sort(key=lambda row: row[0])
        accounts = [self.counters.account(*row) for row in rows]
        scopes = tuple(scopes_of(tenant, key, organization))
        terms = [*(terms for _, _, terms in rows), *(scope.allowance for scope in scopes)]
        limits = bounds(tenant.limits, key.limits)
        money = any(counter.measure is Measure.MONEY for allowance in terms for counter in allowance.counters)
        applied = AppliedLimits(
            tenant,
            key,
            organization,
            tuple(account for account in accounts if not account.allowance.shadow),
            tuple(account for account in accounts if account.allowance.shadow),
            scopes,
            limits,
            self._histories.setdefault(tenant.name, OutputHistory()),
            self._prices if money else None,
            unlimited=limits is None and not accounts and not scopes,
        )
        self._applied[key.id] = applied
        return applied

    def _for_call(self, applied: AppliedLimits, call: Call, headers: Headers) -> AppliedLimits:
        """With the limits of its adapter, end user, tag and session."""
        if not applied.scopes:
            return applied
        named = {Level.ADAPTER: call.sold.adapter, Level.USER: call.end_user, Level.TAG: call.tag}
        session = call.session or _session_of(headers)
        accounts, shadows = list(applied.accounts), list(applied.shadows)
        for scope in applied.scopes:
            identity = "" if scope.level is None else named[scope.level] or ""
            if (scope.level and not identity) or (scope.name and scope.name != identity):
                continue
            if scope.by_session and not session:
                continue
            account = self.counters.account(
                scope.subject(identity, session), scope.consumer(identity), scope.allowance
            )
            account.crowd = scope.crowd()
            (shadows if scope.allowance.shadow else accounts).append(account)
        accounts.sort(key=lambda account: account.subject)
        return replace(applied, accounts=tuple(accounts), shadows=tuple(shadows))

    def _with_others(self, applied: AppliedLimits, account: Account) -> AppliedLimits:
        """Count the request of an end user, tag or session beyond FLORIN_MAX_TENANT_USERS together with all
        others beyond it."""
        family = f"{account.consumer.family}/others"
        others = self.counters.account(
            account.crowd, replace(account.consumer, family=family), account.allowance
        )
        accounts = [others if known is account else known for known in applied.accounts]
        accounts.sort(key=lambda account: account.subject)
        return replace(applied, accounts=tuple(accounts))

    def _forget(self) -> None:
        """Forget subjects that have left the directory, once they hold nothing."""
        self.counters.forget_all_but(
            {subject for subject, _, _ in standing(self._directory, self._budget_of)}
        )
        for name in self._histories.keys() - self._directory.tenants.keys():
            del self._histories[name]


def _refuses(account: Account, now: float) -> bool:
    """Whether the store has just refused what the subject needs."""
    return account.refused is not None and now < account.refused[2]


def _session_of(headers: Headers) -> str:
    for name, value in headers:
        if name == SESSION_HEADER:
            return label_of(value.decode("utf-8", "replace")) or ""
    return ""

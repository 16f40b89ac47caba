"""The counters of limits and budgets, which all workers share in the store, as one worker deals with them.

The worker leases shares of them, for a request and with its reports, and tells the store what was used. The
ledger fills in budgets that the store does not know. A store that is away is left alone for a moment. See
`adapters.store.protocol.limits`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter as Tally
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from adapters.errors import StoreUnavailableError
from adapters.store.protocol.limits import Answer, LimitStore, Verdict
from gateway.tenants.limits.allowances import Allowance, Consumer, Counter
from gateway.tenants.limits.needs import Need
from gateway.tenants.limits.subject_account import Account
from gateway.units import DAY

log = logging.getLogger(__name__)

LEASE_MS: Final = 5_000
"""How long a worker that falls silent keeps its slots."""
AWAY_SECONDS: Final = 0.5
"""Between attempts to reach a store that is away."""
ATTEMPT_SECONDS: Final = 3.0
"""An attempt ends earlier. Meanwhile, nobody else makes one."""
SEED_SECONDS: Final = 2.0
"""How long a request waits for the ledger to say what a budget has used."""
BATCH: Final = 50
"""Subjects in one report: the store does nothing else meanwhile."""

Used = Callable[[Consumer, Sequence[Counter], Allowance], Awaitable[Sequence[int]]]
"""What a consumer has used of these counters of its allowance in their present windows, as the ledger says.
Raises StoreUnavailableError if it cannot say."""


class SharedCounters:
    """Accounts by subject, and what the store says of them. On the worker's event loop only."""

    def __init__(
        self,
        store: LimitStore,
        worker: str,
        *,
        used: Used,
        notify: Callable[[StoreUnavailableError | None], None],
        now: Callable[[], int],
        clock: Callable[[], float],
        most: int,
    ) -> None:
        """`used`: reads budgets that the store does not know from the ledger. `notify`: called with the error
        when the store stops answering, and with None when it answers again. `now`: Unix microseconds. `most`:
        end users, tags and sessions of a tenant that are counted at a time."""
        self._store = store
        self._worker = worker
        self._used = used
        self._notify = notify
        self._now = now
        self._clock = clock
        self.most = most
        # Mutable:
        self._number = 0
        """The last report's."""
        self._refused: dict[str, Tally[str]] = {}
        """What limits in shadow would have refused since the last report, by tenant and limit."""
        # Likewise, by subject:
        self.accounts: dict[str, Account] = {}
        self._seeding: dict[str, asyncio.Task[None]] = {}
        self._reporting: dict[str, asyncio.Task[None]] = {}
        self._away_until = 0.0
        self.away = False
        """Whether the store was away when it was last asked."""

    def __repr__(self) -> str:
        return f"<SharedCounters {len(self.accounts)} subjects{', store away' if self.away else ''}>"

    @property
    def away_now(self) -> bool:
        """Whether the store is away, and it is too early to ask it again."""
        return self._clock() < self._away_until

    def account(self, subject: str, consumer: Consumer, allowance: Allowance) -> Account:
        """The subject's account, with what it may use now."""
        account = self.accounts.get(subject)
        if account is None:
            account = self.accounts[subject] = Account(subject, consumer, allowance, tell=self._report_soon)
        elif account.allowance is not allowance and account.allowance != allowance:
            account.update(allowance)
        return account

    def forget_all_but(self, known: set[str]) -> None:
        """Forget other subjects, once they hold nothing."""
        for subject in [s for s, a in self.accounts.items() if s not in known and a.idle]:
            del self.accounts[subject]

    def note_refusal(self, consumer: Consumer, limit: str) -> None:
        """A limit in shadow would have refused a request."""
        self._refused.setdefault(consumer.tenant, Tally())[f"{consumer.level} {limit}"] += 1

    # -- one request

    async def lease(self, accounts: Sequence[Account], need: Need, digest: str, *, again: bool) -> Answer:
        """Ask the store for what a request needs; if it is granted, reserve it at once. The caller holds the
        accounts' locks. Raises StoreUnavailableError."""
        asked_at = self._begin_attempt()
        lacking = [account.slots >= 0 and account.held <= account.running for account in accounts]
        reports = []
        for account, lacks in zip(accounts, lacking, strict=True):
            account.running += not lacks  # so that no other request takes the slot meanwhile
            number, now = self._next(), self._now()
            reports.append(account.report(number, now, need, slot=lacks, most=self.most))
        try:
            answer = await self._store.lease(
                self._worker, reports, ttl_ms=LEASE_MS, digest=digest, again=again
            )
        except StoreUnavailableError as error:
            self._note_away(error)
            raise
        finally:  # whatever was granted but not heard is given back by the next report
            for account, lacks in zip(accounts, lacking, strict=True):
                account.running -= not lacks
                account.dirty = True
        self._hear(accounts, answer, asked_at)
        if answer.verdict is Verdict.GRANTED:
            for account in accounts:
                account.refused = None
        return answer

    def _next(self) -> int:
        self._number += 1
        return self._number

    def seeding(self, account: Account) -> asyncio.Task[None]:
        """The task that tells the store what the subject's budgets have used, according to the ledger."""
        task = self._seeding.get(account.subject)
        if task is None:
            task = self._seeding[account.subject] = asyncio.create_task(self._seed_from_ledger(account))
            task.add_done_callback(lambda _: self._seeding.pop(account.subject, None))
        return task

    async def _seed_from_ledger(self, account: Account) -> None:
        terms = account.allowance
        budgets = [
            (flow, counter)
            for flow, counter in zip(terms.flows(self._now()), terms.counters, strict=True)
            if not counter.is_rate
        ]
        try:
            used = await self._used(account.consumer, [counter for _, counter in budgets], terms)
            await self._store.seed(account.subject, [flow for flow, _ in budgets], used)
        except StoreUnavailableError as error:
            log.warning("%s: its budgets are not known: %s", account.subject, error)

    # -- reports

    async def flush(self) -> None:
        """Report every subject that is in use, and renew its shares."""
        now = self._clock()
        for subject in [s for s, a in self.accounts.items() if a.consumer.family and a.forgettable(now)]:
            del self.accounts[subject]
        due = [a for a in self.accounts.values() if a.due(now) and not a.lock.locked()]
        due.sort(key=lambda account: account.subject)  # as requests lock them
        for start in range(0, len(due), BATCH):
            try:
                await self._report([a for a in due[start : start + BATCH] if not a.lock.locked()])
            except StoreUnavailableError as error:
                self._note_away(error)
                return
        await self._tell_refused()

    async def _tell_refused(self) -> None:
        refused, self._refused = self._refused, {}
        if refused:
            try:
                await self._store.add_refused(self._now() // DAY, refused)
            except StoreUnavailableError as error:
                log.warning("What limits in shadow would have refused was not counted: %s", error)

    async def close(self) -> None:
        """Give everything back. What is in flight stays reserved."""
        for account in self.accounts.values():
            account.expect_nothing()
        for task in [*self._reporting.values(), *self._seeding.values()]:
            await asyncio.wait([task])
        for account in list(self.accounts.values()):
            async with account.lock:  # a call may be under way
                pass
        await self.flush()

    def _report_soon(self, account: Account) -> asyncio.Task[None]:
        """Another worker may wait for what a request gives back."""
        task = self._reporting.get(account.subject)
        if task is None:
            task = self._reporting[account.subject] = asyncio.create_task(self._report_now(account))
        return task

    async def _report_now(self, account: Account) -> None:
        try:
            await self._report([account])
        except StoreUnavailableError as error:
            self._note_away(error)

    async def _report(self, accounts: list[Account]) -> None:
        """A single account may be in use: then it waits, and reports what has ended meanwhile, too."""
        async with contextlib.AsyncExitStack() as stack:
            for account in accounts:
                await stack.enter_async_context(account.lock)
                self._reporting.pop(account.subject, None)  # the next one is for what ends from now on
                account.tick()
            if self.away_now:
                return
            asked_at = self._begin_attempt()
            now = self._now()
            reports = [account.report(self._next(), now, most=self.most) for account in accounts]
            try:
                answer = await self._store.lease(self._worker, reports, ttl_ms=LEASE_MS)
            except BaseException:
                for account in accounts:
                    account.dirty = True
                raise
            self._hear(accounts, answer, asked_at)
            for account in accounts if answer.shares else ():
                if account.unknown and not account.consumer.family:
                    self.seeding(account)

    # -- the store

    def _hear(self, accounts: Sequence[Account], answer: Answer, asked_at: float) -> None:
        self._note_back()
        now = self._clock()
        for account, share in zip(accounts, answer.shares, strict=bool(answer.shares)):
            account.hear(share, asked_at=asked_at, now=now)

    def _begin_attempt(self) -> float:
        """A store that hangs takes long to fail: if it is away, only one request or report waits for it."""
        now = self._clock()
        if self.away:
            self._away_until = now + ATTEMPT_SECONDS
        return now

    def _note_away(self, error: StoreUnavailableError) -> None:
        self._away_until = self._clock() + AWAY_SECONDS
        if not self.away:
            self._notify(error)
        self.away = True

    def _note_back(self) -> None:
        if self.away:
            self._notify(None)
        self.away, self._away_until = False, 0.0

"""Looks after budgets, on one worker of the installation: exports how far each is used, calls the webhook
once when a soft threshold is passed, and compares what the store counted with the ledger.

The ledger is right, but late: records reach it seconds after their requests. So the store's figure of one
pass is compared with the ledger's of the next, for requests that ended before the first. If the ledger has
more, the difference is added; what it has less is subtracted only as far as workers that fell silent held
shares, which the store counts as used.

A store that fails over to a replica that was behind counts less than before. Workers in its records report
what they have spent in all, which puts that back; the rest only the ledger knows. So such a fall brings the
comparison forward.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from adapters.errors import StoreUnavailableError
from adapters.store.protocol import Store
from adapters.store.protocol.limits import UNKNOWN, Flow, Kind, Share, begun
from gateway.tenants.directory import Directory, Tenant
from gateway.tenants.limits.allowances import Allowance, Consumer, Counter, standing
from gateway.tenants.limits.periods import FOR_EVER, ROLLING, period_of
from gateway.tenants.terms import Budget, Measure
from gateway.units import short_text

log = logging.getLogger(__name__)

ROLE: Final = "budgets"
LEASE_MS: Final = 15_000
LOOK_SECONDS: Final = 5.0
COMPARE_SECONDS: Final = 180.0
QUIET_SECONDS: Final = 10.0
"""After a fall, and at the start: until then, workers report what they know, or their shares lapse."""
SOON_SECONDS: Final = 20.0
"""Until the first comparison after that: the ledger has the records by then."""
CLOCKS: Final = 2_000_000
"""Microseconds by which the store's clock and the ledger's records may differ, the workers' reports
included."""
BATCH: Final = 100
CLAIM_MS: Final = 600_000
"""While a webhook is tried; another worker takes over afterwards."""
DONE_MS: Final = 40 * 86_400_000
"""Longer than any period."""
PREPAID: Final = "prepaid_credits"
"""The name of a budget that is what prepaid credits allow."""
_SHOWN: Final = 5
"""Subjects in a log line."""

Used = Callable[[Consumer, int, int], Awaitable[Mapping[Measure, int]]]
"""Consumer, start, end → what the ledger says it used. Raises StoreUnavailableError."""
Post = Callable[[dict[str, Any]], Awaitable[bool]]
"""Sends the webhook; whether it was received."""


class BudgetMetrics(Protocol):
    def budget_used(self, tenant: str, budget: str, ratio: float) -> None: ...


@dataclass(frozen=True, slots=True)
class Observation:
    at: int
    """Unix microseconds."""
    flows: tuple[Flow, ...]
    share: Share


@dataclass(frozen=True, slots=True)
class Correction:
    more: int
    """To add to what the store counted."""
    settled: int
    """Part of what silent workers held that is accounted for now."""


def correction(before: Share, index: int, *, least: int, most: int) -> Correction | None:
    """How to correct one budget. `before`: an earlier look. `least`, `most`: the ledger's sums of what had
    ended by then, short and beyond the clocks' difference. None: nothing is wrong."""
    settled = before.used[index] - before.shared[index]
    lapsed = before.lapsed[index]
    if least > settled:
        return Correction(least - settled, lapsed)
    unused = min(max(0, settled - most), lapsed)
    return Correction(-unused, lapsed) if lapsed else None


def fell(before: Observation, now: Observation) -> bool:
    """Whether the store has forgotten what it had counted. Within a period, what was used without the shares
    that are still unspent never falls, but for corrections of what silent workers held."""
    first, last = (before.at - CLOCKS) // 1000, (now.at + CLOCKS) // 1000
    rows = zip(before.flows, before.share.used, before.share.shared, before.share.lapsed, strict=True)
    later = {
        flow.name: used - shared
        for flow, used, shared in zip(now.flows, now.share.used, now.share.shared, strict=True)
    }
    for flow, used, shared, lapsed in rows:
        if flow.kind is not Kind.PERIOD or used == UNKNOWN or begun(flow, first) != begun(flow, last):
            continue
        if later.get(flow.name, used) < used - shared - lapsed:
            return True
    return False


@dataclass(slots=True)
class BudgetWatch:
    """Every worker runs one; the one that holds the role works."""

    store: Store
    directory: Directory
    metrics: BudgetMetrics
    used: Used
    post: Post
    now: Callable[[], int]
    budget_of: Callable[[Tenant], Budget] = lambda tenant: tenant.budget
    compare_seconds: float = COMPARE_SECONDS
    clock: Callable[[], float] = time.monotonic
    # Mutable:
    _last: dict[str, Observation] = field(default_factory=dict)
    _before: dict[str, Observation] = field(default_factory=dict)
    """The looks that the next comparison uses."""
    _due: float | None = None
    """When to compare (`clock`)."""
    _known: dict[str, tuple[Consumer, Allowance]] = field(default_factory=dict)
    _generation: int = -1
    """The directory's, when the above was made."""
    _posting: dict[str, asyncio.Task[None]] = field(default_factory=dict)

    async def lost(self) -> None:
        """Another worker leads, and may correct what was seen here."""
        self._last, self._before, self._due = {}, {}, None
        for task in self._posting.values():
            task.cancel()

    async def look(self) -> None:
        """A leader's pass. Raises StoreUnavailableError."""
        budgets = self._budgets()
        subjects = list(budgets)
        seen: dict[str, Observation] = {}
        for start in range(0, len(subjects), BATCH):
            part = subjects[start : start + BATCH]
            looked_at = self.now()
            flows = {subject: budgets[subject][1].flows(looked_at) for subject in part}
            looks = [(subject, flows[subject], budgets[subject][1].limits) for subject in part]
            for subject, share in zip(part, await self.store.looks(looks), strict=True):
                seen[subject] = Observation(looked_at, flows[subject], share)
                await self._show(subject, *budgets[subject], share, looked_at)
        lost = [s for s, seen_now in seen.items() if s in self._last and fell(self._last[s], seen_now)]
        self._last = seen
        if lost or self._due is None:
            self._before, self._due = {}, self.clock() + QUIET_SECONDS
        if lost:
            log.warning(
                "Redis has forgotten what was used of budgets, as after a failover to a replica that was "
                "behind: %s%s. The ledger corrects them within a minute.",
                ", ".join(lost[:_SHOWN]),
                ", …" if len(lost) > _SHOWN else "",
            )
        if self.clock() >= self._due:
            compared = bool(self._before)
            while self._before:
                # Taken first: a comparison that fails midway may have corrected the store already.
                subject, observation = self._before.popitem()
                if subject in budgets:
                    await self.compare(subject, observation)
            self._due = self.clock() + (self.compare_seconds if compared else SOON_SECONDS)
            self._before = seen

    def forget_terms(self) -> None:
        """Budgets have changed, and the directory has not."""
        self._generation = -1

    def _budgets(self) -> dict[str, tuple[Consumer, Allowance]]:
        """The subjects that have budgets, and no others."""
        if self._generation != self.directory.generation:
            self._generation = self.directory.generation
            self._known = {
                subject: (consumer, allowance)
                for subject, consumer, allowance in standing(self.directory, self.budget_of)
                if not allowance.shadow and not all(counter.is_rate for counter in allowance.counters)
            }
        return self._known

    async def _show(
        self, subject: str, consumer: Consumer, allowance: Allowance, share: Share, now: int
    ) -> None:
        for counter, used in zip(allowance.counters, share.used, strict=True):
            if counter.is_rate or used == UNKNOWN:
                continue
            if consumer.level == "tenant":
                ratio = used / counter.limit if counter.limit else 1.0
                self.metrics.budget_used(consumer.tenant, counter.name, ratio)
            if used * 100 >= counter.limit * allowance.warn_percent:
                await self._warn(subject, consumer, allowance, counter, used, now)

    # -- the webhook

    async def _warn(
        self, subject: str, consumer: Consumer, allowance: Allowance, counter: Counter, used: int, now: int
    ) -> None:
        start, end = period_of(counter.window, now, allowance.timezone_of(counter))
        if counter.window in ROLLING:  # at most one warning in a window's length
            length = ROLLING[counter.window]
            start, end = now - now % length, now - now % length + length
        name, budget = f"budget:{subject}:{counter.name}:{start}", counter.name
        if allowance.is_credit(counter):  # after a top-up it may warn again
            name, budget = f"{name}:{counter.limit}", PREPAID
        if name in self._posting or not await self.store.claim_once(name, CLAIM_MS):
            return
        money = counter.measure is Measure.MONEY
        body = {
            "event": "budget.warning",
            "tenant": consumer.tenant,
            "key": consumer.key or None,
            "level": consumer.level,
            "budget": budget,
            "used": _shown(used, money=money),
            "limit": _shown(counter.limit, money=money),
            "period_start": start // 1_000_000,
            "period_end": None if end == FOR_EVER else end // 1_000_000,
        }
        self._posting[name] = task = asyncio.create_task(self._post(name, body))
        task.add_done_callback(lambda _: self._posting.pop(name, None))

    async def _post(self, name: str, body: dict[str, Any]) -> None:
        received = await self.post(body)
        with contextlib.suppress(StoreUnavailableError):
            await self.store.keep_claim(name, DONE_MS if received else CLAIM_MS)

    # -- the ledger

    async def compare(self, subject: str, before: Observation) -> None:
        """Correct a subject's budgets by the ledger. Raises StoreUnavailableError."""
        known = self._budgets().get(subject)
        if known is None:  # it was taken away meanwhile
            return
        consumer, allowance = known
        places = {flow.name: index for index, flow in enumerate(before.flows)}
        for counter in allowance.counters:
            index = places.get(counter.name)
            if index is None or counter.is_rate or before.share.used[index] == UNKNOWN:
                continue
            start, end = period_of(counter.window, before.at, allowance.timezone_of(counter))
            if end == FOR_EVER:  # its records may have been pruned
                continue
            flow = before.flows[index]
            least = (await self.used(consumer, start, before.at - CLOCKS)).get(counter.measure)
            most = (await self.used(consumer, start, before.at + CLOCKS)).get(counter.measure)
            if least is None or most is None:
                continue
            adjustment = correction(before.share, index, least=least, most=most)
            if adjustment is not None:
                log.info("%s: %s corrected by %d by the ledger", subject, counter.name, adjustment.more)
                await self.store.correct(
                    subject, flow, begun(flow, before.at // 1000), adjustment.more, settled=adjustment.settled
                )


def _shown(amount: int, *, money: bool) -> int | str:
    """Tokens as a number, money as a decimal text."""
    return short_text(amount, 9) if money else amount

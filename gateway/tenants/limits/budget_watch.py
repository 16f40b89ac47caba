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
from adapters.store.protocol.limits import FLOWS, RATES, UNKNOWN, Amounts, Flow, Share
from adapters.store.protocol.limits import period_of as period_number
from gateway.tenants.directory import Directory, Tenant
from gateway.tenants.limits.periods import period_of
from gateway.tenants.limits.subject_account import flow_limits
from gateway.tenants.limits.wording import NAMES
from gateway.tenants.terms import NO_BUDGET, Budget, PrepaidBudget
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
_BUDGETS: Final = range(RATES, FLOWS)
PREPAID: Final = "prepaid_credits"
"""The name of a budget that is what prepaid credits allow."""
_SHOWN: Final = 5
"""Subjects in a log line."""

Used = Callable[[str, int, int], Awaitable[Mapping[int, int]]]
"""Subject, start, end → what the ledger says it used, by flow. Raises StoreUnavailableError."""
Post = Callable[[dict[str, Any]], Awaitable[bool]]
"""Sends the webhook; whether it was received."""


class BudgetMetrics(Protocol):
    def budget_used(self, tenant: str, budget: str, ratio: float) -> None: ...


@dataclass(frozen=True, slots=True)
class Observation:
    at: int
    """Unix microseconds."""
    share: Share
    periods: tuple[int, ...]
    """Numbers of the budgets' periods."""


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
    for index, flow in enumerate(_BUDGETS):
        used = before.share.used[index]
        if used == UNKNOWN or period_number(flow, first) != period_number(flow, last):
            continue
        settled, later = used - before.share.shared[index], now.share.used[index] - now.share.shared[index]
        if later < settled - before.share.lapsed[index]:
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
    _posting: dict[str, asyncio.Task[None]] = field(default_factory=dict)

    async def lost(self) -> None:
        """Another worker leads, and may correct what was seen here."""
        self._last, self._before, self._due = {}, {}, None
        for task in self._posting.values():
            task.cancel()

    async def look(self) -> None:
        """A leader's pass. Raises StoreUnavailableError."""
        budgets = self._budgets()
        subjects = [(subject, limits) for subject, (_, _, limits) in budgets.items()]
        seen: dict[str, Observation] = {}
        for start in range(0, len(subjects), BATCH):
            part = subjects[start : start + BATCH]
            looked_at = self.now()
            periods = tuple(period_number(flow, looked_at // 1000) for flow in range(FLOWS))
            for (subject, _), share in zip(part, await self.store.looks(part), strict=True):
                seen[subject] = Observation(looked_at, share, periods)
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

    def _budgets(self) -> dict[str, tuple[str, Budget, Amounts]]:
        """Subject → its tenant, budget, and limits."""
        budgets: dict[str, tuple[str, Budget, Amounts]] = {}
        for tenant in self.directory.tenants.values():
            budget = self.budget_of(tenant)
            if budget != NO_BUDGET:
                budgets[f"tenant:{tenant.name}"] = tenant.name, budget, flow_limits(tenant.limits, budget)
        for key in self.directory.keys.values():
            if key.budget != NO_BUDGET and key.revoked is None:
                budgets[f"key:{key.id}"] = key.tenant, key.budget, flow_limits(key.limits, key.budget)
        return budgets

    async def _show(
        self, subject: str, tenant: str, budget: Budget, limits: Amounts, share: Share, now: int
    ) -> None:
        for flow in _BUDGETS:
            used, limit = share.used[flow - RATES], limits[flow]
            if limit < 0 or used == UNKNOWN:
                continue
            if subject.startswith("tenant:"):
                self.metrics.budget_used(tenant, NAMES[flow], used / limit if limit else 1.0)
            if used * 100 >= limit * budget.warn_percent:
                prepaid = flow == Flow.MONEY_PER_MONTH and isinstance(budget, PrepaidBudget)
                await self._warn(subject, tenant, Flow(flow), used, limit, now, prepaid=prepaid)

    # -- the webhook

    async def _warn(
        self, subject: str, tenant: str, flow: Flow, used: int, limit: int, now: int, *, prepaid: bool
    ) -> None:
        start, end = period_of(flow, now)
        name, budget = f"budget:{subject}:{NAMES[flow]}:{start}", NAMES[flow]
        if prepaid:  # after a top-up it may warn again
            name, budget = f"{name}:{limit}", PREPAID
        if name in self._posting or not await self.store.claim_once(name, CLAIM_MS):
            return
        whose, _, identity = subject.partition(":")
        money = flow >= Flow.MONEY_PER_DAY
        body = {
            "event": "budget.warning",
            "tenant": tenant,
            "key": identity if whose == "key" else None,
            "budget": budget,
            "used": _shown(used, money=money),
            "limit": _shown(limit, money=money),
            "period_start": start // 1_000_000,
            "period_end": end // 1_000_000,
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
        for flow in _BUDGETS:
            if before.share.used[flow - RATES] == UNKNOWN:
                continue
            start, _ = period_of(flow, before.at)
            least = (await self.used(subject, start, before.at - CLOCKS)).get(flow)
            most = (await self.used(subject, start, before.at + CLOCKS)).get(flow)
            if least is None or most is None:
                continue
            adjustment = correction(before.share, flow - RATES, least=least, most=most)
            if adjustment is not None:
                log.info("%s: %s corrected by %d by the ledger", subject, NAMES[flow], adjustment.more)
                await self.store.correct(
                    subject, flow, before.periods[flow], adjustment.more, settled=adjustment.settled
                )


def _shown(amount: int, *, money: bool) -> int | str:
    """Tokens as a number, money as a decimal text."""
    return short_text(amount, 9) if money else amount

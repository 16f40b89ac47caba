"""This worker's shares of one tenant's or key's limits."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Final

from adapters.store.protocol.limits import (
    FLOWS,
    NEAR_PARTS,
    NEAR_REQUESTS,
    NOTHING,
    RATES,
    UNKNOWN,
    UNLIMITED,
    Amounts,
    Flow,
    Report,
    Share,
    Verdict,
)
from gateway.tenants.limits.needs import Need, nano
from gateway.tenants.terms import Budget, Limits

SHARE_SECONDS: Final = 2.0
"""How long a share may be spent after the store was last asked about the subject."""
REPORT_SECONDS: Final = 0.2
"""Between reports of a subject in use."""
RENEW_SECONDS: Final = 1.0
"""Between reports of a subject that only holds something."""
KEEP: Final = 1.5
"""Shares for so many intervals between reports are kept."""
FEW_SLOTS: Final = 8
"""A limit of so few concurrent requests is never kept for requests to come."""
REFUSED_CALLS: Final = 20.0
"""Calls of the store per second and subject while it refuses."""
_BUDGETS: Final = range(RATES, FLOWS)


def amounts(values: list[int]) -> Amounts:
    a, b, c, d, e, f = values
    return a, b, c, d, e, f


def flow_limits(limits: Limits, budget: Budget) -> Amounts:
    """The limit of each flow, UNLIMITED where there is none."""
    ceilings = (
        limits.requests_per_minute,
        limits.tokens_per_minute,
        budget.tokens_per_day,
        budget.tokens_per_month,
        nano(budget.money_per_day),
        nano(budget.money_per_month),
    )
    return amounts([UNLIMITED if limit is None else limit for limit in ceilings])


class Account:
    """What the store has granted, and what of it requests have reserved and spent.

    For each flow, granted = spent + reserved + free, all cumulative but the last two. `free` is less than
    zero while requests have used more than they reserved. Mutable, on the event loop only; `lock` is held
    while the store is asked about the subject.
    """

    __slots__ = (
        "_completed", "_taken", "_taken_slots", "_tell", "budget", "budgets", "calls", "calls_at",
        "completions", "demand", "dirty", "expires", "flows", "free", "heard", "held", "limits", "lock",
        "number", "refused", "reported", "reserved", "running", "share", "share_at", "slot_demand", "slots",
        "spent", "subject", "tenant", "unknown", "worst",
    )  # fmt: skip

    def __init__(
        self,
        subject: str,
        tenant: str,
        limits: Limits,
        budget: Budget,
        *,
        tell: Callable[[Account], asyncio.Task[None]],
    ) -> None:
        """`tell`: called when a slot or a part of a budget is free that others may wait for. The task is done
        when they can have it."""
        self.subject = subject
        self._tell = tell
        self.tenant = tenant
        self.number = 0
        self.free = [0] * FLOWS
        self.reserved = [0] * FLOWS
        self.spent = [0] * FLOWS
        self.heard: Amounts = NOTHING
        """The store's last `granted`."""
        self.running = 0
        self.held = 0
        """Slots granted, those of running requests included."""
        self.expires = -math.inf
        self.reported = -math.inf
        self.dirty = False
        self.share: Share | None = None
        self.share_at = 0.0
        self.unknown = False
        """Whether the store does not know how much of a budget was used."""
        self.worst: Amounts = NOTHING
        """The worst case of the last request that waited for the store."""
        self.demand = [0.0] * FLOWS
        """Taken per interval, smoothed; likewise the next two."""
        self.slot_demand = 0.0
        self.completions = 0.0
        self._taken = [0] * FLOWS
        self._taken_slots = 0
        self._completed = 0
        self.refused: tuple[Verdict, int, float] | None = None
        """Why the store refused last, which flow, and until when (monotonic)."""
        self.calls, self.calls_at = REFUSED_CALLS, 0.0
        self.lock = asyncio.Lock()
        self.update(limits, budget)

    def __repr__(self) -> str:
        return f"<Account {self.subject} running={self.running} free={self.free} reserved={self.reserved}>"

    def update(self, limits: Limits, budget: Budget) -> None:
        """The operator's current terms."""
        self.limits = flow_limits(limits, budget)
        self.budget = budget
        self.slots = UNLIMITED if limits.concurrent is None else limits.concurrent
        self.flows = tuple(flow for flow in range(FLOWS) if self.limits[flow] >= 0)
        self.budgets = tuple(flow for flow in self.flows if flow >= RATES)
        self.refused = None

    # -- one request

    def need(self, need: Amounts) -> Amounts:
        """A request that needs more tokens than a minute's limit waits for all of them, and for no more."""
        most = self.limits[Flow.TOKENS]
        if need[1] <= most or most < 0:
            return need
        return (need[0], most, *need[2:])

    def covers(self, need: Need, now: float) -> bool:
        """Whether this worker's shares suffice."""
        if now >= self.expires:
            return False
        free, expected = self.free, self.need(need.expected)
        for flow in self.flows:
            if free[flow] < expected[flow]:
                return False
        if self.budgets and self.near(need.worst):
            return False
        return self.slots < 0 or self.held > self.running

    @property
    def scarce(self) -> bool:
        """Whether other workers may lack the slots that this one keeps: it then keeps none, and reports at
        once when a request ends."""
        share, slots = self.share, self.slots
        if slots < 0 or share is None:
            return False
        taken = max(share.running, self.running) + share.idle_slots
        return slots <= FEW_SLOTS or share.wanted or 4 * (slots - taken) <= slots

    def near(self, worst: Amounts) -> bool:
        """Whether a budget is near its end: each request is then counted in the store, at its worst."""
        share = self.share
        if share is None or self.unknown:
            return True
        for flow in self.budgets:
            left = self.limits[flow] - share.used[flow - RATES]
            if left * NEAR_PARTS < self.limits[flow] or left < NEAR_REQUESTS * worst[flow]:
                return True
        return False

    def reserve(self, taken: Amounts) -> None:
        free, reserved, counted = self.free, self.reserved, self._taken
        for flow in self.flows:
            amount = taken[flow]
            free[flow] -= amount
            reserved[flow] += amount
            counted[flow] += amount
        self.running += 1
        self._taken_slots += 1
        self.dirty = True

    def leave(self) -> asyncio.Task[None] | None:
        """End a request's use of a slot. Returns the task that tells the store, if others may wait for it."""
        self.running -= 1
        self._completed += 1
        self.dirty = True
        return self._tell(self) if self.scarce else None

    def settle(self, flows: tuple[int, ...], taken: Amounts, used: Amounts) -> None:
        """End a request that has left: give back what it has `taken`, and count what it used."""
        for flow in flows:
            self.reserved[flow] -= taken[flow]
            self.spent[flow] += used[flow]
            self.free[flow] += taken[flow] - used[flow]
        self.dirty = True
        if self.budgets and self.near(self.worst):
            self._tell(self)

    # -- reports

    def due(self, now: float) -> bool:
        """Whether there is anything to report now."""
        if self.dirty or self.idle:
            return self.dirty
        return self.slot_demand > 0 or now - self.reported >= RENEW_SECONDS

    @property
    def idle(self) -> bool:
        """It holds nothing, and has nothing to report."""
        return not (self.dirty or self.running or self.held or any(self.free) or any(self.reserved))

    def tick(self) -> None:
        """An interval has passed: learn the demand."""
        for flow in range(FLOWS):
            self.demand[flow] = _smoothed(self.demand[flow], self._taken[flow])
            self._taken[flow] = 0
        self.slot_demand = _smoothed(self.slot_demand, self._taken_slots)
        self.completions = _smoothed(self.completions, self._completed)
        self._taken_slots = self._completed = 0

    def report(self, need: Need | None = None, *, slot: bool = False) -> Report:
        """The next report: gives back what is not needed, and asks for what will be. `need`: of a request
        that waits; then the whole share is given back, so that the store decides and books as a whole.
        `slot`: whether it needs one, too."""
        if need:
            self.worst = need.worst
        near = bool(self.budgets) and self.near(self.worst)
        more = [0] * FLOWS
        for flow in range(FLOWS):
            idle = self.limits[flow] < 0 or (near and flow >= RATES)
            keep = 0 if idle else math.ceil(self.demand[flow] * KEEP)
            self.free[flow] = min(self.free[flow], 0 if need else keep)
            more[flow] = keep - max(0, self.free[flow])
        spare = 0 if self.scarce or self.slots < 0 else math.ceil(self.slot_demand)
        self.held = max(self.running, min(self.held, self.running + spare)) if self.slots >= 0 else 0
        self.number += 1
        self.dirty = False
        return Report(
            self.subject,
            self.limits,
            self.slots,
            self.number,
            self.heard,
            amounts([self.spent[f] + self.reserved[f] + max(0, self.free[f]) for f in range(FLOWS)]),
            amounts(self.spent),
            running=self.running,
            held=self.held,
            need=self._limited(self.need(need.expected)) if need else NOTHING,
            worst=need.worst if need else NOTHING,
            need_slots=int(slot),
            more=amounts(more),
            more_slots=max(0, spare - (self.held - self.running)) if self.slots >= 0 else 0,
        )

    def _limited(self, need: Amounts) -> Amounts:
        return amounts([need[flow] if self.limits[flow] >= 0 else 0 for flow in range(FLOWS)])

    def hear(self, share: Share, *, asked_at: float, now: float) -> None:
        """The store's answer to a report that was made at `asked_at`."""
        self.heard = share.granted
        for flow in range(FLOWS):
            self.free[flow] = share.granted[flow] - self.spent[flow] - self.reserved[flow]
        self.held = share.held
        self.share, self.share_at = share, now
        self.unknown = any(share.used[flow - RATES] == UNKNOWN for flow in self.budgets)
        self.expires, self.reported = asked_at + SHARE_SECONDS, now

    # -- while the store refuses

    def may_call(self, now: float, *, take: bool = True) -> bool:
        """Whether the store may be asked for another request, after a refusal. `take`: it will be."""
        self.calls = min(REFUSED_CALLS, self.calls + (now - self.calls_at) * REFUSED_CALLS)
        self.calls_at = now
        if self.calls < 1:
            return False
        self.calls -= take
        return True

    # -- what it looks like

    def remaining(self, flow: int, now: float) -> int:
        """Units of a rate that are left, over all workers, as far as this one knows."""
        limit = self.limits[flow]
        if self.share is None:
            return max(0, limit + self.free[flow])
        refilled = (now - self.share_at) * limit / 60
        return max(0, min(limit, int(self.share.levels[flow] + refilled) + self.free[flow]))

    def used_parts(self) -> list[tuple[Flow, int, int]]:
        """Budgets whose soft threshold is passed: flow, used, limit."""
        share = self.share
        if share is None:
            return []
        return [
            (Flow(flow), share.used[flow - RATES], self.limits[flow])
            for flow in self.budgets
            if share.used[flow - RATES] * 100 >= self.limits[flow] * self.budget.warn_percent
        ]

    def slot_seconds(self) -> float:
        """Expected time until a request of the subject ends, over all workers."""
        mine = self.completions / REPORT_SECONDS
        others = max(1, self.share.running if self.share else 1) / max(1, self.running)
        rate = mine * others
        return min(30.0, 1 / rate) if rate > 0 else 1.0


def _smoothed(average: float, new: int) -> float:
    """Falls fast: what is not needed is given back soon."""
    average = (average + new) / 2 if new else average / 4
    return average if average >= 0.05 else 0.0

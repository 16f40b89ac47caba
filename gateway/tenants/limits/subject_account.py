"""This worker's shares of one subject's limits."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Final

from adapters.store.protocol.limits import (
    UNKNOWN,
    Amounts,
    Answer,
    Report,
    Share,
    Verdict,
)
from gateway.tenants.limits.allowances import Allowance, Consumer, Counter
from gateway.tenants.limits.holding import Holding
from gateway.tenants.limits.needs import Need, Used

SHARE_SECONDS: Final = 2.0
"""How long a share may be spent after the store was last asked about the subject."""
REPORT_SECONDS: Final = 0.2
"""Between reports of a subject in use."""
RENEW_SECONDS: Final = 1.0
"""Between reports of a subject that only holds something."""
KEEP: Final = 1.5
"""Shares for so many intervals between reports are kept."""
FORGET_SECONDS: Final = 10.0
"""From the last report until an idle subject of a family is forgotten: its share in the store lapses
before."""
FEW_SLOTS: Final = 8
"""A limit of so few concurrent requests is never kept for requests to come."""
REFUSED_CALLS: Final = 20.0
"""Calls of the store per second and subject while it refuses."""


Reservation = tuple["Account", tuple[Holding, ...], Amounts]
"""What a request has taken of a subject's flows."""


class Account:
    """What the store has granted, and what of it requests have reserved and spent. Mutable, on the event loop
    only; `lock` is held while the store is asked about the subject."""

    __slots__ = (
        "_completed", "_known", "_reporting", "_taken_slots", "_tell", "allowance", "budgets", "calls",
        "calls_at", "completions", "consumer", "crowd", "dirty", "expires", "held", "holdings", "lock",
        "rates", "refused", "reported", "running", "share", "share_at", "slot_demand", "slots", "subject",
        "unknown", "worst",
    )  # fmt: skip

    def __init__(
        self,
        subject: str,
        consumer: Consumer,
        allowance: Allowance,
        *,
        tell: Callable[[Account], asyncio.Task[None]],
    ) -> None:
        """`tell`: called when a slot or a part of a budget is free that others may wait for. The task is done
        when they can have it."""
        self.subject = subject
        self.consumer = consumer
        self.crowd = ""
        """The subject that stands for it if its family has too many."""
        self._tell = tell
        self._known: dict[str, Holding] = {}
        self._reporting: tuple[Holding, ...] = ()
        """Those of the report that is under way."""
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
        self.worst: Used = (0, 0, 0)
        """The worst case of the last request that waited for the store."""
        self.slot_demand = 0.0
        """Taken per interval, smoothed; likewise the next."""
        self.completions = 0.0
        self._taken_slots = 0
        self._completed = 0
        self.refused: tuple[Verdict, Counter | None, float] | None = None
        """Why the store refused last, what was used up, and until when (monotonic)."""
        self.calls, self.calls_at = REFUSED_CALLS, 0.0
        self.lock = asyncio.Lock()
        self.update(allowance)

    def __repr__(self) -> str:
        return f"<Account {self.subject} running={self.running} {list(self.holdings)}>"

    def update(self, allowance: Allowance) -> None:
        """The operator's current terms."""
        self.allowance, self.slots, self.refused = allowance, allowance.slots, None
        for counter in allowance.counters:
            known = self._known.get(counter.name)
            if known is None:
                self._known[counter.name] = Holding(counter)
            else:
                known.update(counter)
        self.holdings = tuple(self._known[counter.name] for counter in allowance.counters)
        self.budgets = tuple(holding for holding in self.holdings if not holding.is_rate)
        self.rates = tuple(h for h in self.holdings if h.is_rate and not self.consumer.is_shared)
        """Rates that answers show."""

    # -- one request

    def need(self, need: Used) -> Amounts:
        """What it takes of each flow. A request that needs more than a minute's limit waits for all of it,
        and for no more."""
        return tuple([min(need[h.unit], h.limit) if h.is_rate else need[h.unit] for h in self.holdings])

    def covers(self, need: Need, now: float) -> bool:
        """Whether this worker's shares suffice."""
        if now >= self.expires:
            return False
        expected = need.expected
        for holding in self.holdings:
            amount = expected[holding.unit]
            if holding.free < amount and not (holding.is_rate and holding.free >= holding.limit):
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

    def near(self, worst: Used) -> bool:
        """Whether a budget is near its end."""
        if self.share is None or self.unknown:
            return True
        for budget in self.budgets:  # noqa: SIM110  # on the path of every request; a generator costs more
            if budget.near(worst):
                return True
        return False

    def take(self, need: Used) -> Reservation:
        """Reserve what a request needs, whether there is as much or not."""
        return self._reserve(self.holdings, self.need(need))

    def take_granted(self, taken: Amounts) -> Reservation:
        """Reserve what the answer to the last report grants."""
        return self._reserve(self._reporting, taken)

    def _reserve(self, holdings: tuple[Holding, ...], taken: Amounts) -> Reservation:
        for holding, amount in zip(holdings, taken, strict=True):
            holding.free -= amount
            holding.reserved += amount
            holding.taken += amount
        self.running += 1
        self._taken_slots += 1
        self.dirty = True
        return self, holdings, taken

    def leave(self) -> asyncio.Task[None] | None:
        """End a request's use of a slot. Returns the task that tells the store, if others may wait for it."""
        self.running -= 1
        self._completed += 1
        self.dirty = True
        return self._tell(self) if self.scarce else None

    def settle(self, holdings: tuple[Holding, ...], taken: Amounts, used: Used) -> None:
        """End a request that has left: give back what it has `taken`, and count what it used."""
        for holding, amount in zip(holdings, taken, strict=True):
            spent = used[holding.unit]
            holding.reserved -= amount
            holding.spent += spent
            holding.free += amount - spent
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
        return not (
            self.dirty or self.running or self.held or any(h.free or h.reserved for h in self.holdings)
        )

    def forgettable(self, now: float) -> bool:
        """Whether the store has forgotten this worker's share, too: whoever begins anew repeats nothing."""
        return self.idle and now - self.reported >= FORGET_SECONDS and not self.lock.locked()

    def tick(self) -> None:
        """An interval has passed: learn the demand."""
        for holding in self.holdings:
            holding.demand = _smoothed(holding.demand, holding.taken)
            holding.taken = 0
        self.slot_demand = _smoothed(self.slot_demand, self._taken_slots)
        self.completions = _smoothed(self.completions, self._completed)
        self._taken_slots = self._completed = 0

    def expect_nothing(self) -> None:
        """The worker stops: no requests are to come."""
        for holding in self.holdings:
            holding.demand = 0.0
        self.slot_demand = 0.0

    def report(
        self, number: int, now: int, need: Need | None = None, *, slot: bool = False, most: int
    ) -> Report:
        """The next report: gives back what is not needed, and asks for what will be. `number`: ascends.
        `now`: Unix microseconds. `need`: of a request that waits; then the whole share is given back, so that
        the store decides and books as a whole. `slot`: whether it needs one, too. `most`: subjects of its
        family at a time."""
        if need:
            self.worst = need.worst
        near = bool(self.budgets) and self.near(self.worst)
        more = []
        for holding in self.holdings:
            idle = near and not holding.is_rate
            keep = 0 if idle else math.ceil(holding.demand * KEEP)
            holding.free = min(holding.free, 0 if need else keep)
            more.append(keep - max(0, holding.free))
        spare = 0 if self.scarce or self.slots < 0 else math.ceil(self.slot_demand)
        self.held = max(self.running, min(self.held, self.running + spare)) if self.slots >= 0 else 0
        self.dirty = False
        self._reporting = holdings = self.holdings
        return Report(
            self.subject,
            self.allowance.flows(now),
            self.allowance.limits,
            self.slots,
            number,
            tuple([h.heard for h in holdings]),
            tuple([h.spent + h.reserved + max(0, h.free) for h in holdings]),
            tuple([h.spent for h in holdings]),
            running=self.running,
            held=self.held,
            need=self.need(need.expected) if need else (),
            worst=tuple([need.worst[h.unit] for h in holdings]) if need else (),
            need_slots=int(slot),
            more=tuple(more),
            more_slots=max(0, spare - (self.held - self.running)) if self.slots >= 0 else 0,
            family=self.consumer.family,
            most=most,
        )

    def hear(self, share: Share, *, asked_at: float, now: float) -> None:
        """The store's answer to the last report, which was made at `asked_at`."""
        rows = zip(self._reporting, share.granted, share.used, share.shared, share.booked, strict=True)
        for holding, granted, used, shared, booked in rows:
            holding.heard, holding.used, holding.shared, holding.booked = granted, used, shared, booked
            holding.free = granted - holding.spent - holding.reserved
        self.held = share.held
        self.share, self.share_at = share, now
        self.unknown = any(budget.used == UNKNOWN for budget in self.budgets)
        self.expires, self.reported = asked_at + SHARE_SECONDS, now

    # -- while the store refuses

    def refusing(self, answer: Answer) -> Counter | None:
        """What an answer to the last report says is used up; None: slots."""
        if answer.verdict is Verdict.SLOTS:
            return None
        return self._reporting[answer.flow].counter

    def may_call(self, now: float, *, take: bool = True) -> bool:
        """Whether the store may be asked for another request, after a refusal. `take`: it will be."""
        self.calls = min(REFUSED_CALLS, self.calls + (now - self.calls_at) * REFUSED_CALLS)
        self.calls_at = now
        if self.calls < 1:
            return False
        self.calls -= take
        return True

    # -- what it looks like

    def remaining(self, holding: Holding, now: float) -> int:
        """Units of a rate that are left, over all workers, as far as this one knows."""
        limit = holding.limit
        if self.share is None:
            return max(0, limit + holding.free)
        refilled = (now - self.share_at) * limit / 60
        return max(0, min(limit, int(limit - holding.used + refilled) + holding.free))

    def warnings(self) -> list[tuple[str, int]]:
        """Budgets whose soft threshold is passed: name, and percentage used."""
        if self.share is None or self.consumer.is_shared:
            return []
        warn_percent = self.allowance.warn_percent
        return [
            (budget.counter.name, budget.used * 100 // budget.limit if budget.limit else 100)
            for budget in self.budgets
            if budget.used * 100 >= budget.limit * warn_percent
        ]

    def reserves(self, counter: Counter) -> bool:
        """Whether requests in flight have reserved what is left of a budget, as far as is known."""
        budget = self._known[counter.name]
        return self.share is not None and budget.used - budget.shared < budget.limit

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

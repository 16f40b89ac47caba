"""Who waits for the engines of one fleet, and who goes next. Pure."""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import count
from typing import Final

from gateway.admission.fair_queue.vtc import Counters

LOAD_SLACK: Final = 200.0
"""Weighted tokens by which a tenant may be behind another one that goes first because its adapter need not be
loaded, or because more requests wait for that load."""


class Fit(IntEnum):
    """Whether an engine has room for a request now."""

    NO = 0
    READY = 1
    """On an engine that holds its adapter."""
    OPENS = 2
    """After its adapter is loaded."""


@dataclass(slots=True, eq=False)
class Waiter:
    """One request that waits for its turn."""

    tenant: str
    weight: float
    level: int
    """Its class: 0 goes first."""
    lane: Hashable
    """Its adapter and whatever else decides where it can run: what keeps one request of a lane waiting keeps
    all others waiting."""
    since: float
    returns: bool = False
    """It has had its turn before, so it goes before all others of its class."""
    number: int = 0


Fitter = Callable[[Waiter], Fit]


@dataclass(slots=True, eq=False)
class _Tenant:
    name: str
    lanes: OrderedDict[Hashable, OrderedDict[Waiter, None]] = field(default_factory=OrderedDict)
    """Lanes in the order of their last turn, each with its waiters in the order of arrival."""
    size: int = 0


class _Level:
    """One class. Mutable."""

    def __init__(self) -> None:
        self.counters = Counters()
        self.tenants: dict[str, _Tenant] = {}
        self.returning: OrderedDict[Waiter, None] = OrderedDict()
        self.heap: list[tuple[float, int, str]] = []
        """(counter, tie-breaker, tenant): at least one entry for each tenant. One with an old counter is
        renewed when it comes up, and a second one is dropped."""
        self.size = 0

    def lowest(self) -> float | None:
        for entry in self._in_order():
            heapq.heappush(self.heap, entry)
            return entry[0]
        return None

    def renew(self, tenant: str, ticket: int) -> None:
        heapq.heappush(self.heap, (self.counters.account(tenant).counter, ticket, tenant))

    def _in_order(self) -> Iterator[tuple[float, int, str]]:
        """Take the entries out of the heap, lowest counter first. The caller puts them back."""
        seen: set[str] = set()
        while self.heap:
            entry = heapq.heappop(self.heap)
            key, ticket, tenant = entry
            if tenant not in self.tenants or tenant in seen:
                continue
            now = self.counters.account(tenant).counter
            if key != now:
                heapq.heappush(self.heap, (now, ticket, tenant))
            else:
                seen.add(tenant)
                yield entry

    def next(self, fit: Fitter, refused: set[Hashable], budget: list[int]) -> Waiter | None:
        for waiter in list(self.returning):
            if budget[0] <= 0:
                return None
            if waiter.lane not in refused and self._fits(waiter, fit, refused, budget):
                return waiter
        opening: Waiter | None = None
        most, last = 0, math.inf
        taken: list[tuple[float, int, str]] = []
        try:
            for entry in self._in_order():
                taken.append(entry)
                counter, _, name = entry
                if budget[0] <= 0 or counter > last:
                    break
                for lane, waiters in self.tenants[name].lanes.items():
                    if lane in refused or budget[0] <= 0:
                        continue
                    waiter = next(iter(waiters))
                    verdict = self._fits(waiter, fit, refused, budget)
                    if verdict is Fit.READY:
                        return waiter
                    if verdict is Fit.OPENS and len(waiters) > most:
                        opening, most, last = waiter, len(waiters), min(last, counter + LOAD_SLACK)
        finally:
            for entry in taken:
                heapq.heappush(self.heap, entry)
        return opening

    @staticmethod
    def _fits(waiter: Waiter, fit: Fitter, refused: set[Hashable], budget: list[int]) -> Fit:
        budget[0] -= 1
        verdict = fit(waiter)
        if not verdict:
            refused.add(waiter.lane)
        return verdict


class WaitingList:
    """The requests of one worker that wait for one fleet. Mutable."""

    def __init__(self, levels: int) -> None:
        self.levels = tuple(_Level() for _ in range(levels))
        self.size = 0
        """Requests of all levels together."""
        self._numbers = count(1)

    def __repr__(self) -> str:
        return f"<WaitingList {[level.size for level in self.levels]}>"

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[Waiter]:
        for level in self.levels:
            yield from level.returning
            for tenant in level.tenants.values():
                for waiters in tenant.lanes.values():
                    yield from waiters

    def waiting(self, tenant: str, levels: int) -> int:
        """Requests of a tenant, of the highest `levels` classes."""
        return sum(t.size for level in self.levels[:levels] if (t := level.tenants.get(tenant)))

    def before(self, level: int) -> int:
        """Requests of this class or a higher one."""
        return sum(self.levels[i].size for i in range(level + 1)) if self.size else 0

    def push(self, waiter: Waiter, lowest: float | None = None) -> None:
        """`lowest`: the lowest counter of the tenants that wait on other workers."""
        level = self.levels[waiter.level]
        waiter.number = next(self._numbers)
        level.size += 1
        self.size += 1
        if waiter.returns:
            level.returning[waiter] = None
            return
        tenant = level.tenants.get(waiter.tenant)
        if tenant is None:
            here = level.lowest()
            known = [c for c in (here, lowest) if c is not None]
            level.counters.lift(waiter.tenant, waiter.weight, min(known) if known else None)
            tenant = level.tenants[waiter.tenant] = _Tenant(waiter.tenant)
            # Of equal counters, the tenant that has started to wait last goes first: the others have been
            # served since its own last turn.
            level.renew(waiter.tenant, -waiter.number)
        tenant.lanes.setdefault(waiter.lane, OrderedDict())[waiter] = None
        tenant.size += 1

    def remove(self, waiter: Waiter, *, served: bool = False) -> None:
        """`served`: it is its turn; otherwise it gives up."""
        level = self.levels[waiter.level]
        level.size -= 1
        self.size -= 1
        if waiter.returns:
            del level.returning[waiter]
            return
        tenant = level.tenants[waiter.tenant]
        lane = tenant.lanes[waiter.lane]
        del lane[waiter]
        tenant.size -= 1
        if not lane:
            del tenant.lanes[waiter.lane]
        elif served:
            tenant.lanes.move_to_end(waiter.lane)
        if not tenant.size:
            del level.tenants[waiter.tenant]
            if not level.tenants:
                level.counters.emptied(waiter.tenant)

    def corrected(self, level: int, tenant: str) -> None:
        """The tenant's counter was lowered."""
        if tenant in self.levels[level].tenants:
            self.levels[level].renew(tenant, next(self._numbers))

    def next(self, fit: Fitter, *, picks: int) -> Waiter | None:
        """The request whose turn it is: of the highest class, of the tenant served least, the oldest of its
        lane. One that has no room does not hold up the others. `picks`: at most so many are tried. It stays
        in the list."""
        refused: set[Hashable] = set()
        budget = [picks]
        for level in self.levels:
            if level.size and (waiter := level.next(fit, refused, budget)):
                return waiter
        return None

    def ahead(self, waiter: Waiter) -> float:
        """How many requests go before it, roughly: those of higher classes, and of its own class as many of
        each tenant as of its own, by weight."""
        mine = self.levels[waiter.level]
        tenant = mine.tenants.get(waiter.tenant)
        rounds = (tenant.size if tenant else 1) / waiter.weight
        requests = float(self.before(waiter.level) - mine.size + len(mine.returning))
        for other in mine.tenants.values():
            requests += min(other.size, rounds * mine.counters.account(other.name).weight)
        return requests

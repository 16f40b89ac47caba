"""The fair queue of one fleet, as one worker keeps it. Pure.

Whoever drives it calls `begin` when a request gets its turn and `end` when it has left its engine, `push` and
`remove` for requests that wait, and `next` whenever there may be room. `report` and `hear` are one side each
of the exchange with the other workers, after which `divide` says how many requests each engine gets from this
worker (`EngineView.limit`).
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from adapters.placement.scheduling.view import EngineView
from gateway.admission.fair_queue.shares import HORIZON, Demand, divide, part
from gateway.admission.fair_queue.vtc import Account, service
from gateway.admission.fair_queue.waiting import Fitter, Waiter, WaitingList

LEVELS: Final = 4
"""Classes: high, normal, low, and batches' lines."""
BATCH: Final = 3
"""The class of batches' lines, which fill what the others leave idle. It exists within this worker only: the
other workers know its requests as in flight on their engines, and never as waiting, so that nobody's share or
turn depends on them."""
PICKS: Final = 16
"""Requests that are tried each time an engine has room. `sweep` tries them all."""
TOLD: Final = 64
"""Tenants of each class in a report: those that wait and have been served least, then those in flight."""
UNUSED_SECONDS: Final = 0.25
"""Time after which a place that was left to other workers, and that none has taken, is free for all."""
TIDY_SECONDS: Final = 60.0
RATE_SECONDS: Final = 10.0
"""Seconds over which the rate of ends is measured."""
LEAST_RATE_SECONDS: Final = 0.5
DURATIONS: Final = 20
"""Latest requests whose durations are remembered."""
_SERVICE_MEMORY: Final = 0.8
RESERVE: Final = 0.06, 0.25
"""Least and largest fraction of an engine's credit that greedy tenants leave to the others, so that these
need not wait for a running request to end."""
MISSES: Final = 0.01
"""Share of the others' requests that may meet an engine without a place for them."""
BATCH_RESERVE: Final = 0.25
"""Fraction of an engine's credit, at least one place, that batches leave to the other classes."""
GREEDY: Final = 1.5
"""Times its share of the requests in flight from which on a tenant is greedy."""


@dataclass(slots=True, eq=False)
class Charge:
    """What one request on an engine has been charged so far."""

    level: int
    tenant: str
    account: Account
    """The tenant's. It is kept as long as the tenant has requests in flight."""
    began: float
    expected: float
    """Tokens of its answer that were charged in advance."""
    charged: float
    engine: str = ""
    """Where it was sent, set by who does."""
    ended: bool = False


Report = list[list[Any]]
"""[class, tenant, waiting, in flight, weight, given, counter]"""


class FleetQueue:
    """Mutable. Times are monotonic seconds."""

    def __init__(self, base_model: str = "") -> None:
        self.base_model = base_model
        self.waiting = WaitingList(LEVELS)
        self.in_flight: dict[tuple[int, str], int] = {}
        """(Class, tenant) → this worker's requests that have had their turn; never 0."""
        self.started = 0
        """Their total, without batches' lines."""
        self.quota = math.inf
        """How many of them this worker may have while requests wait anywhere."""
        self._durations: deque[float] = deque(maxlen=DURATIONS)
        """Seconds between a request's turn and its end; without batches' lines, as the next."""
        self._ends: deque[float] = deque(maxlen=256)
        """Times."""
        self._waiting_since = 0.0
        """When requests began to wait, if any do."""
        self._others: dict[str, dict[tuple[int, str], Demand]] = {}
        self._tidied = -math.inf
        self._untaken: dict[str, float] = {}
        """Engine → since when it has had room that was left to other workers."""
        self._spare: set[str] = set()
        """Engines whose room none of these has taken for UNUSED_SECONDS."""
        self._charges: set[Charge] = set()
        """Those of the requests in flight."""
        self._greedy: set[tuple[int, str]] = set()
        """(Class, tenant) with far more in flight than its share, on all workers, as of the last division."""
        self._seat_service = 0.0
        """Weighted tokens that a request in flight gets in HORIZON."""
        self._served = (0.0, -math.inf)
        """The total, and when it was taken."""

    def __repr__(self) -> str:
        return f"<FleetQueue {len(self.waiting)} waiting, {self.started} started, quota {self.quota:g}>"

    # -- requests

    def passes(self, level: int) -> bool:
        """Whether a new request of this class may go at once where there is room: nobody waits before it."""
        waiting = self.waiting
        return self.started < self.quota and not (waiting.size and waiting.before(level))

    def has_room(self, view: EngineView) -> bool:
        """Whether this worker may send one more request to the engine."""
        return not view.full and (self.started < self.quota or view.name in self._spare)

    def yields(self, tenant: str, level: int) -> bool:
        """Whether the tenant leaves the engines' last places to others, and does not let prompts queue in
        them: it has far more in flight than its share."""
        return (level, tenant) in self._greedy

    def push(self, waiter: Waiter) -> None:
        if not len(self.waiting):
            self._waiting_since = waiter.since
        self.waiting.push(waiter, self._lowest_of_others(waiter.level))

    def next(self, fit: Fitter, *, picks: int = PICKS) -> Waiter | None:
        """See `WaitingList.next`. None: nobody's turn."""
        return self.waiting.next(fit, picks=picks) if self.started < self.quota or self._spare else None

    def begin(self, tenant: str, weight: float, level: int, prompt: int, now: float) -> Charge:
        """A request has got its turn: charge its prompt, and the answer that its tenant may expect."""
        counters, key = self.waiting.levels[level].counters, (level, tenant)
        account = counters.account(tenant, weight)
        account.weight = weight
        expected = account.output
        tokens = service(prompt, expected)
        account.given += tokens
        counters.serve(account, tokens, now)
        self.in_flight[key] = self.in_flight.get(key, 0) + 1
        self.started += level != BATCH
        charge = Charge(level, tenant, account, now, expected, tokens)
        self._charges.add(charge)
        return charge

    def progress(self, charge: Charge, prompt: int, output: int, now: float) -> None:
        """So much has been served. Less than was expected is corrected at its end only."""
        more = service(prompt, max(output, charge.expected)) - charge.charged
        if more > 0:
            self._correct(charge, more, now)

    def end(self, charge: Charge, prompt: int, output: int, now: float, *, answered: bool) -> None:
        """The request has left its engine, which has served so much. Only the first call has an effect."""
        if charge.ended:
            return
        charge.ended = True
        self._charges.discard(charge)
        key = charge.level, charge.tenant
        self.in_flight[key] -= 1
        if not self.in_flight[key]:
            del self.in_flight[key]
        self._correct(charge, service(prompt, output) - charge.charged, now)
        if answered:
            charge.account.answered(output)
        if charge.level != BATCH:
            self.started -= 1
            if prompt or output:
                self._ends.append(now)
            if answered:
                self._durations.append(now - charge.began)

    def _correct(self, charge: Charge, more: float, now: float) -> None:
        charge.charged += more
        charge.account.given += more
        self.waiting.levels[charge.level].counters.serve(charge.account, more, now)
        if more < 0 and self.waiting.size:
            self.waiting.corrected(charge.level, charge.tenant)

    def expected_wait(self, waiter: Waiter, now: float) -> float:
        """Seconds until its turn, from its place in the fair order and the rate at which requests end; 0:
        unknown. `waiter` has been pushed."""
        rate = self.rate(now)
        return self.waiting.ahead(waiter) / rate if rate else 0.0

    @property
    def duration(self) -> float:
        """Seconds between a request's turn and its end; 0: unknown. The lower quartile of the latest: whoever
        is refused because of a guess cannot show that it was wrong."""
        return sorted(self._durations)[len(self._durations) // 4] if self._durations else 0.0

    def rate(self, now: float) -> float:
        """Requests that end here per second, as measured since requests have been waiting; as long as that is
        too short, as those in flight and their duration tell (Little's law). 0: unknown."""
        since = max(self._waiting_since, now - RATE_SECONDS)
        if len(self._ends) == self._ends.maxlen:
            since = max(since, self._ends[0])
        duration = self.duration
        if now - since > max(LEAST_RATE_SECONDS, duration):
            ends = sum(end > since for end in self._ends)
            if ends:
                return ends / (now - since)
        return max(1, self.started) / duration if duration else 0.0

    # -- other workers

    def report(self) -> Report:
        """For the other workers."""
        rows: Report = []
        for number, level in enumerate(self.waiting.levels[:BATCH]):
            accounts = level.counters.accounts
            waiting = sorted(level.tenants.values(), key=lambda t: accounts[t.name].counter)
            names = [tenant.name for tenant in waiting[:TOLD]]
            if len(names) < TOLD:
                more = (
                    name
                    for level_number, name in self.in_flight
                    if level_number == number and name not in level.tenants
                )
                names += [name for name, _ in zip(more, range(TOLD - len(names)), strict=False)]
            returning = Counter(waiter.tenant for waiter in level.returning)
            names += [name for name in returning if name not in names]
            for name in names:
                account = level.counters.account(name)
                size = returning[name] + (level.tenants[name].size if name in level.tenants else 0)
                numbers = round(account.given), round(account.counter)
                rows.append(
                    [number, name, size, self.in_flight.get((number, name), 0), account.weight, *numbers]
                )
        return rows

    def hear(self, reports: Mapping[str, Report], now: float) -> None:
        """The other workers' latest reports, by worker."""
        waited = {
            key for demands in self._others.values() for key, demand in demands.items() if demand.waiting
        }
        self._others = {}
        for worker, report in reports.items():
            demands = self._others[worker] = {}
            for level, tenant, waiting, in_flight, weight, given, counter in report:
                demands[level, tenant] = Demand(waiting, in_flight, weight, given, counter)
                own = self.waiting.levels[level]
                own.counters.hear(worker, tenant, weight, given, counter, now)
                if waiting and (level, tenant) not in waited and tenant not in own.tenants:
                    own.counters.lift(tenant, weight, counter)  # as that worker has done
        if now - self._tidied < TIDY_SECONDS:
            return
        self._tidied = now
        for number, level in enumerate(self.waiting.levels):
            level.counters.forget_workers(reports)
            active = {tenant for level_number, tenant in self.in_flight if level_number == number}
            level.counters.forget(now, active | level.tenants.keys())

    def waiting_elsewhere(self, tenant: str) -> int:
        """Requests of a tenant that wait on other workers, as last heard."""
        return sum(d.waiting for o in self._others.values() for (_, t), d in o.items() if t == tenant)

    @property
    def contended(self) -> bool:
        """Whether requests wait, on any worker."""
        return self.pressing > 0

    @property
    def pressing(self) -> int:
        """Requests that wait, on all workers as last heard, without batches' lines."""
        elsewhere = sum(d.waiting for others in self._others.values() for d in others.values())
        return self.waiting.before(BATCH - 1) + elsewhere

    def divide(self, engines: Iterable[tuple[EngineView, int]], now: float) -> None:
        """Set `limit` of each usable engine, given with its credit, until the next exchange."""
        engines = list(engines)
        self._measure(now)
        self._find_greedy()
        charges = self._charges if self._greedy else ()
        yielding = Counter(c.engine for c in charges if (c.level, c.tenant) in self._greedy)
        for view, credit in engines:
            others_too = view.load / (view.in_flight or 1)  # as here, so on the other workers
            view.yielding = min(view.load, yielding[view.name] * others_too)
            view.last_places = credit - reserve(credit, view.load - view.yielding)
            view.filled = max(1, credit - max(1, round(BATCH_RESERVE * credit)))
        self._spare.clear()
        if not self._others:
            self.quota = math.inf
            for view, credit in engines:
                view.limit = credit - view.others_in_flight
            return
        contended = self.contended
        if contended:
            mine, others = self._divide(sum(credit for _, credit in engines))
        else:
            self.quota, mine = math.inf, 1.0 + self.started
            others = sum(1.0 + sum(d.requests for d in o.values()) for o in self._others.values())
        for view, credit in engines:
            own = view.in_flight + view.waiting
            free = max(0, credit - own - view.others_in_flight)
            view.limit = own + part(free, mine, others)
            if not free:
                self._untaken.pop(view.name, None)
            elif now - self._untaken.setdefault(view.name, now) >= UNUSED_SECONDS and contended:
                self._spare.add(view.name)
                view.limit = max(view.limit, own + 1)

    def _find_greedy(self) -> None:
        """Find the tenants with far more in flight than their share, by weight, of what is in flight."""
        in_flight = Counter({key: n for key, n in self.in_flight.items() if key[0] != BATCH})
        weights = {
            (number, name): level.counters.account(name).weight
            for number, level in enumerate(self.waiting.levels[:BATCH])
            for name in level.tenants
        }
        weights |= {key: self.waiting.levels[key[0]].counters.account(key[1]).weight for key in in_flight}
        for demands in self._others.values():
            for key, demand in demands.items():
                in_flight[key] += demand.in_flight
                weights[key] = demand.weight
        most = GREEDY * in_flight.total() / (sum(weights.values()) or 1)
        self._greedy = {key for key, n in in_flight.items() if n > weights[key] * most}

    def _divide(self, seats: float) -> tuple[float, float]:
        """How many more requests this worker and the others may have in flight, in the whole fleet."""
        own = {
            (number, name): Demand(size, running, account.weight)
            for number, name, size, running, account in self._own_demands()
        }
        counters = {
            (number, tenant): account.counter
            for number, level in enumerate(self.waiting.levels)
            for tenant, account in level.counters.accounts.items()
        }
        quotas = divide({"": own, **self._others}, seats, self._seat_service, counters)
        self.quota = quotas[""]
        others = sum(
            max(0.0, quotas[worker] - sum(d.in_flight for d in demands.values()))
            for worker, demands in self._others.items()
        )
        return max(0.0, self.quota - self.started), others

    def _own_demands(self) -> Iterable[tuple[int, str, int, int, Any]]:
        for number, level in enumerate(self.waiting.levels[:BATCH]):
            names = {
                *level.tenants,
                *(name for level_number, name in self.in_flight if level_number == number),
            }
            names |= {waiter.tenant for waiter in level.returning}
            for name in names:
                waiting = level.tenants[name].size if name in level.tenants else 0
                waiting += sum(waiter.tenant == name for waiter in level.returning)
                in_flight = self.in_flight.get((number, name), 0)
                yield number, name, waiting, in_flight, level.counters.account(name)

    def _measure(self, now: float) -> None:
        """How much a request in flight is served."""
        total = sum(level.counters.served for level in self.waiting.levels[:BATCH])
        before, then = self._served
        if now - then < HORIZON:
            return
        self._served = total, now
        busy = self.started + sum(d.in_flight for o in self._others.values() for d in o.values())
        if busy and then > -math.inf and total > before:
            measured = (total - before) / (now - then) / busy * HORIZON
            weight = 1 - _SERVICE_MEMORY if self._seat_service else 1.0
            self._seat_service += (measured - self._seat_service) * weight

    def _lowest_of_others(self, level: int) -> float | None:
        counters = self.waiting.levels[level].counters
        waiting_counters = [
            counters.account(tenant, demand.weight).counter
            for demands in self._others.values()
            for (level_number, tenant), demand in demands.items()
            if level_number == level and demand.waiting
        ]
        return min(waiting_counters, default=None)


def reserve(credit: int, others: float) -> int:
    """How many places of an engine greedy tenants leave to the others, which have so many requests there.

    Requests of all end at the rate at which those of the others come, times credit / others. As long as ends
    fill the reserve first, it is a queue with that load, and empty for MISSES of the arrivals if it has
    log(MISSES) / log(load) places."""
    load = min(0.99, others / credit) if credit else 0.0
    places = math.log(MISSES) / math.log(load) if load > 0 else 0.0
    least, largest = RESERVE
    return round(min(largest * credit, max(least * credit, places)))

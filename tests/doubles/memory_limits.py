"""The memory store's limits: the model of lua/limits.lua, in the same order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field

from adapters.store.protocol.limits import (
    LAPSE_MS,
    MOST_BOOKINGS,
    NEAR_PARTS,
    NEAR_REQUESTS,
    SLICES,
    UNKNOWN,
    Amounts,
    Answer,
    Flow,
    Kind,
    Report,
    Share,
    Verdict,
    begun,
)
from tests.doubles.memory_coordination import MemoryCoordination

WANTED_MS = SOON_MS = 1000
KEEP_MS = 40 * 86_400_000
KEEP_OTHERS_MS = 600_000
KEEP_FAMILY_MS = 60_000


@dataclass
class Rate:
    level: int
    """In units of 1 / window, as of a time."""
    at: int
    window: int
    till: int = 0


@dataclass
class Budget:
    used: int
    period: int | None = None
    """None: it rolls."""
    lapsed: int = 0
    window: int = 0
    slices: list[list[int]] = field(default_factory=list)
    till: int = 0


@dataclass
class Worker:
    shares: dict[str, list[int]] = field(default_factory=dict)
    """Granted and spent, by flow."""
    number: int = 0
    till: int = 0
    running: int = 0
    held: int = 0


@dataclass
class Booking:
    at: int
    digest: str
    amounts: dict[str, int]


def amount(amounts: Amounts, flow: int) -> int:
    return amounts[flow] if amounts else 0


@dataclass
class Subject:
    flows: dict[str, Rate | Budget] = field(default_factory=dict)
    workers: dict[str, Worker] = field(default_factory=dict)
    bookings: list[Booking] = field(default_factory=list)
    wanted: int = 0
    till: int = 0

    def held(self) -> int:
        return sum(w.held for w in self.workers.values())

    def unspent(self, name: str) -> int:
        shares = [w.shares[name] for w in self.workers.values() if name in w.shares]
        return sum(max(0, granted - spent) for granted, spent in shares)

    def left(self, flow: Flow, limit: int) -> int:
        match self.flows.get(flow.name):
            case Rate(level=level, window=window):
                return level // window
            case Budget(used=used):
                return limit - used
        return 0

    def take(self, flow: Flow, amount: int) -> None:
        match self.flows.get(flow.name):
            case Rate() as rate:
                rate.level -= amount * rate.window
            case Budget() as budget:
                budget.used += amount

    def begin(self, now: int, flow: Flow, used: int) -> None:
        used += self.unspent(flow.name)
        rolls = flow.kind is Kind.ROLLING
        self.flows[flow.name] = Budget(
            used,
            None if rolls else begun(flow, now),
            window=flow.window[0] if rolls else 0,
            till=now + KEEP_MS,
        )

    def update(  # noqa: PLR0912  # in the order of the script
        self, now: int, flows: Sequence[Flow], limits: Amounts, *, family: bool = False
    ) -> None:
        for name, worker in list(self.workers.items()):
            if worker.till <= now:
                for flow_name, (granted, spent) in worker.shares.items():
                    budget = self.flows.get(flow_name)
                    if isinstance(budget, Budget) and budget.period is not None:
                        budget.lapsed += max(0, granted - spent)
                del self.workers[name]
        freed = [b for b in self.bookings if b.at + LAPSE_MS < now]
        self.bookings = [b for b in self.bookings if b.at + LAPSE_MS >= now]
        for booking in freed:
            for name, units in booking.amounts.items():
                rate = self.flows.get(name)
                if isinstance(rate, Rate):
                    rate.level += units * rate.window
        for flow, limit in zip(flows, limits, strict=True):
            state = self.flows.get(flow.name)
            if flow.kind is Kind.RATE:
                window = flow.window[0]
                old = state if isinstance(state, Rate) else Rate(limit * window, now, window)
                level = old.level + max(0, now - old.at) * limit
                booked = sum(b.amounts.get(flow.name, 0) for b in self.bookings)
                level = min(level, (limit - booked) * window)
                self.flows[flow.name] = Rate(level, max(now, old.at), window)
            elif not isinstance(state, Budget):
                if family:
                    self.begin(now, flow, 0)
            elif state.period is not None:
                if state.period < begun(flow, now):
                    self.begin(now, flow, 0)
            else:
                oldest = now * SLICES // state.window - SLICES
                state.used -= sum(units for number, units in state.slices if number < oldest)
                state.slices = [s for s in state.slices if s[0] >= oldest]

    def settle(self, now: int, name: str, state: Budget) -> None:
        number, slices = now * SLICES // state.window, state.slices
        settled = state.used - self.unspent(name) - sum(units for _, units in slices)
        while settled < 0 and slices:
            back = min(-settled, slices[-1][1])
            settled += back
            slices[-1][1] -= back
            if slices[-1][1] == 0:
                slices.pop()
        if settled > 0 and slices and slices[-1][0] >= number:
            slices[-1][1] += settled
        elif settled > 0:
            slices.append([number, settled])

    def save(self, now: int, flows: Sequence[Flow], *, family: bool = False) -> None:
        for flow in flows:
            till = now + KEEP_MS
            if flow.kind is Kind.RATE:
                till = now + 10 * flow.window[0]
            elif family and flow.kind is Kind.PERIOD:
                till = min((start for start in flow.window if start > now), default=till)
            elif family:
                till = now + flow.window[0] * (SLICES + 1) // SLICES
            if flow.name in self.flows:
                self.flows[flow.name].till = till
        for name, state in self.flows.items():
            if isinstance(state, Budget) and state.period is None:
                self.settle(now, name, state)
        self.flows = {name: state for name, state in self.flows.items() if state.till > now}
        kept = [state.till for state in self.flows.values()]
        self.till = max([now + (KEEP_FAMILY_MS if family else KEEP_OTHERS_MS), *kept])

    def account(self, now: int, ttl: int, name: str, report: Report) -> Worker | None:
        worker = self.workers.get(name, Worker(number=-1))
        if report.number <= worker.number:
            return None
        for i, flow in enumerate(report.flows):
            known, spent = worker.shares.get(flow.name), amount(report.spent, i)
            total = max(amount(report.granted, i), spent)
            more = total - (known[0] if known else amount(report.heard, i))
            self.take(flow, more if known else max(0, more))
            worker.shares[flow.name] = [total, spent]
        worker.number, worker.till = report.number, now + ttl
        worker.running, worker.held = report.running, report.held
        self.workers[name] = worker
        return worker

    def wanted_of(self, report: Report, i: int) -> int:
        flow, limit = report.flows[i], report.limits[i]
        need, worst = amount(report.need, i), amount(report.worst, i)
        if flow.kind is not Kind.RATE and need > 0:
            left = self.left(flow, limit)
            if left * NEAR_PARTS < limit or left < NEAR_REQUESTS * worst:
                alone = worst > left and self.unspent(flow.name) == 0
                return max(left if alone else worst, min(need, 1))
        return need

    def share(self, now: int, flows: Sequence[Flow], limits: Amounts, name: str) -> Share:
        worker = self.workers.get(name)
        others = [w for n, w in self.workers.items() if n != name]
        states = [self.flows.get(flow.name) for flow in flows]
        budgets = [flow.kind is not Kind.RATE for flow in flows]
        return Share(
            granted=tuple(worker.shares[flow.name][0] if worker else 0 for flow in flows),
            held=worker.held if worker else 0,
            used=tuple(
                limit - self.left(flow, limit) if state else UNKNOWN
                for flow, limit, state in zip(flows, limits, states, strict=True)
            ),
            booked=tuple(sum(b.amounts.get(flow.name, 0) for b in self.bookings) for flow in flows),
            shared=tuple(
                self.unspent(flow.name) if is_budget else 0
                for flow, is_budget in zip(flows, budgets, strict=True)
            ),
            lapsed=tuple(state.lapsed if isinstance(state, Budget) else 0 for state in states),
            running=sum(w.running for w in self.workers.values()),
            idle_slots=sum(max(0, w.held - w.running) for w in others),
            wanted=self.wanted > now,
            due=tuple(b.digest for b in self.bookings if b.at <= now + SOON_MS),
        )


class MemoryLimits(MemoryCoordination):
    def __init__(self, clock) -> None:
        super().__init__(clock)
        self._subjects: dict[str, Subject] = {}
        self._families: dict[str, dict[str, int]] = {}
        self._claims: dict[str, int] = {}
        self._refused: dict[tuple[str, int], Counter[str]] = {}

    def _known(self, name: str, now: int) -> Subject | None:
        subject = self._subjects.get(name)
        return deepcopy(subject) if subject and subject.till > now else None

    def _save(self, name: str, subject: Subject, now: int, flows: Sequence[Flow], family: str = "") -> None:
        subject.save(now, flows, family=bool(family))
        self._subjects[name] = subject
        if family:
            self._families.setdefault(family, {})[name] = subject.till

    async def seed(self, subject: str, flows: Sequence[Flow], used: Sequence[int]) -> None:
        now = self._now()
        state = self._known(subject, now) or Subject()
        state.update(now, (), ())
        for flow, units in zip(flows, used, strict=True):
            if flow.name not in state.flows:
                state.begin(now, flow, units)
        self._save(subject, state, now, ())

    async def correct(self, subject: str, flow: Flow, period: int, more: int, *, settled: int) -> None:
        now = self._now()
        state = self._known(subject, now) or Subject()
        state.update(now, (), ())
        budget = state.flows.get(flow.name)
        if isinstance(budget, Budget) and budget.period in (None, period):
            budget.used = max(0, budget.used + more)
            budget.lapsed = max(0, budget.lapsed - settled)
            self._save(subject, state, now, ())

    async def looks(self, subjects: Sequence[tuple[str, Sequence[Flow], Amounts]]) -> list[Share]:
        now = self._now()
        shares = []
        for name, flows, limits in subjects:
            state = self._known(name, now) or Subject()
            state.update(now, flows, limits)
            shares.append(state.share(now, flows, limits, ""))
        return shares

    async def add_refused(self, day: int, refused: Mapping[str, Mapping[str, int]]) -> None:
        for tenant, limits in refused.items():
            self._refused.setdefault((tenant, day), Counter()).update(limits)

    async def refused(self, tenant: str, days: Sequence[int]) -> list[dict[str, int]]:
        return [dict(self._refused.get((tenant, day), {})) for day in days]

    async def claim_once(self, name: str, ttl_ms: int) -> bool:
        now = self._now()
        if self._claims.get(name, now) > now:
            return False
        self._claims[name] = now + ttl_ms
        return True

    async def keep_claim(self, name: str, ttl_ms: int) -> None:
        if name in self._claims:
            self._claims[name] = self._now() + ttl_ms

    async def lease(  # noqa: C901, PLR0912  # in the order of the script
        self, worker: str, reports: Sequence[Report], *, ttl_ms: int, digest: str = "", again: bool = False
    ) -> Answer:
        now = self._now()
        subjects, workers = [], []
        for i, report in enumerate(reports):
            known = self._known(report.subject, now)
            subject = known or Subject()
            subject.update(now, report.flows, report.limits, family=bool(report.family))
            if report.family and known is None and (report.need or report.need_slots > 0):
                members = self._families.get(report.family, {})
                members = {name: till for name, till in members.items() if till > now}
                self._families[report.family] = members
                if len(members) >= report.most:
                    return Answer(Verdict.CROWDED, i)
            record = subject.account(now, ttl_ms, worker, report)
            if record is None:
                return Answer(Verdict.STALE, i)
            subjects.append(subject)
            workers.append(record)
        verdict, where, what, wait, places = judge(now, subjects, reports, digest, again)
        booked, reserved = False, []
        if verdict is Verdict.GRANTED:
            for subject, record, report, booking in zip(subjects, workers, reports, places, strict=True):
                if booking is not None:
                    subject.bookings.remove(booking)
                    for flow in report.flows:
                        subject.take(flow, -booking.amounts.get(flow.name, 0))
                granted = tuple(subject.wanted_of(report, i) for i in range(len(report.flows)))
                for flow, units in zip(report.flows, granted, strict=True):
                    subject.take(flow, units)
                    record.shares[flow.name][0] += units
                record.held += report.need_slots
                reserved.append(granted)
        elif verdict is Verdict.RATE and places is None:
            booked = True
        elif verdict is Verdict.RATE and digest:
            booked = all(len(s.bookings) < MOST_BOOKINGS for s in subjects)
            for subject, report in zip(subjects, reports, strict=True) if booked else ():
                amounts = rated(report)
                if amounts:
                    for flow in report.flows:
                        subject.take(flow, amounts.get(flow.name, 0))
                    subject.bookings.append(Booking(now + wait, digest, amounts))
                    subject.bookings.sort(key=lambda b: b.at)
        for subject, record, report in zip(subjects, workers, reports, strict=True):
            for flow, limit, more in zip(report.flows, report.limits, report.more, strict=False):
                if more > 0 and flow.name in subject.flows and not subject.bookings:
                    left = subject.left(flow, limit)
                    if flow.kind is Kind.RATE or left * NEAR_PARTS >= limit:
                        extra = max(0, min(more, left // 4))
                        subject.take(flow, extra)
                        record.shares[flow.name][0] += extra
            if report.more_slots > 0 and report.slots >= 0 and subject.wanted <= now:
                record.held += max(0, min(report.more_slots, (report.slots - subject.held()) // 4))
            self._save(report.subject, subject, now, report.flows, report.family)
        shares = tuple(
            subject.share(now, report.flows, report.limits, worker)
            for subject, report in zip(subjects, reports, strict=True)
        )
        return Answer(verdict, where, what, wait, booked, tuple(reserved), shares)


def rated(report: Report) -> dict[str, int]:
    """What a report needs of rates."""
    needs = zip(report.flows, report.need, strict=False)
    return {flow.name: need for flow, need in needs if flow.kind is Kind.RATE and need > 0}


def judge(  # noqa: C901, PLR0912  # one decision, in the order of the Lua script
    now: int, subjects: list[Subject], reports: Sequence[Report], digest: str, again: bool
):
    for i, (subject, report) in enumerate(zip(subjects, reports, strict=True)):
        if report.need_slots > 0 and 0 <= report.slots < subject.held() + report.need_slots:
            subject.wanted = now + WANTED_MS
            return Verdict.SLOTS, i, 0, 0, None
        for f, flow in enumerate(report.flows):
            if flow.kind is not Kind.RATE and amount(report.need, f) > 0:
                if flow.name not in subject.flows:
                    return Verdict.UNSEEDED, i, f, 0, None
                if subject.wanted_of(report, f) > subject.left(flow, report.limits[f]):
                    return Verdict.BUDGET, i, f, 0, None
    none: list[Booking | None] = [None] * len(subjects)
    places = list(none)
    due, early, wait, where, what = bool(digest), 0, 0, 0, 0
    for i, (subject, report) in enumerate(zip(subjects, reports, strict=True)):
        if rated(report):
            booking = next((b for b in subject.bookings if b.digest == digest), None)
            places[i] = booking
            if booking is None or booking.at > now:
                due = False
            if booking is not None:
                early = max(early, booking.at - now)
        for f, (flow, limit) in enumerate(zip(report.flows, report.limits, strict=True)):
            rate = subject.flows.get(flow.name)
            if isinstance(rate, Rate):
                need = amount(report.need, f) * rate.window
                if need > 0 and rate.level < need:
                    ms = -((rate.level - need) // limit) if limit else 60_000
                    if ms > wait:
                        wait, where, what = ms, i, f
    if due and any(places):
        return Verdict.GRANTED, 0, 0, 0, places
    if wait > 0:
        return (
            Verdict.RATE,
            where,
            what,
            early if again and early > 0 else wait,
            None if again and early > 0 else none,
        )
    return Verdict.GRANTED, 0, 0, 0, none

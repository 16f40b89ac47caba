"""The memory store's limits: the model of lua/limits.lua, in the same order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field

from adapters.store.protocol.limits import (
    FLOWS,
    LAPSE_MS,
    MINUTE_MS,
    MOST_BOOKINGS,
    NEAR_PARTS,
    NEAR_REQUESTS,
    RATES,
    Amounts,
    Answer,
    Report,
    Share,
    Verdict,
    period_of,
)
from tests.doubles.memory_coordination import MemoryCoordination

WANTED_MS = SOON_MS = 1000


@dataclass
class Budget:
    used: int
    period: int
    lapsed: int = 0


@dataclass
class Worker:
    granted: list[int]
    spent: list[int]
    number: int = 0
    until: int = 0
    running: int = 0
    held: int = 0


@dataclass
class Booking:
    at: int
    digest: str
    amounts: tuple[int, int]


@dataclass
class Subject:
    rates: list[tuple[int, int] | None] = field(default_factory=lambda: [None] * RATES)
    """Level in units of 1 / MINUTE_MS, as of a time."""
    budgets: dict[int, Budget] = field(default_factory=dict)
    workers: dict[str, Worker] = field(default_factory=dict)
    bookings: list[Booking] = field(default_factory=list)
    wanted: int = 0

    def held(self) -> int:
        return sum(w.held for w in self.workers.values())

    def unspent(self, flow: int) -> int:
        return sum(max(0, w.granted[flow] - w.spent[flow]) for w in self.workers.values())

    def left(self, flow: int, limit: int) -> int:
        if flow < RATES:
            rate = self.rates[flow]
            return rate[0] // MINUTE_MS if rate else 0
        return limit - self.budgets[flow].used if flow in self.budgets else 0

    def known(self, flow: int) -> bool:
        return (self.rates[flow] is not None) if flow < RATES else flow in self.budgets

    def take(self, flow: int, limit: int, amount: int) -> None:
        if limit < 0 or not self.known(flow):
            return
        if flow < RATES:
            rate = self.rates[flow]
            assert rate
            self.rates[flow] = (rate[0] - amount * MINUTE_MS, rate[1])
        else:
            self.budgets[flow].used += amount

    def update(self, now: int, limits: Sequence[int]) -> None:
        for name, worker in list(self.workers.items()):
            if worker.until <= now:
                for flow, budget in self.budgets.items():
                    budget.lapsed += max(0, worker.granted[flow] - worker.spent[flow])
                del self.workers[name]
        for flow, budget in self.budgets.items():
            if budget.period < period_of(flow, now):
                self.budgets[flow] = Budget(self.unspent(flow), period_of(flow, now))
        freed = [b for b in self.bookings if b.at + LAPSE_MS < now]
        self.bookings = [b for b in self.bookings if b.at + LAPSE_MS >= now]
        for flow in range(RATES):
            limit, rate = limits[flow], self.rates[flow]
            if rate is not None:
                back = sum(b.amounts[flow] for b in freed)
                rate = self.rates[flow] = (rate[0] + back * MINUTE_MS, rate[1])
            if limit >= 0:
                level, at = rate or (limit * MINUTE_MS, now)
                level += max(0, now - at) * limit
                most = limit - sum(b.amounts[flow] for b in self.bookings)
                self.rates[flow] = (min(level, most * MINUTE_MS), max(now, at))

    def account(self, now: int, ttl: int, name: str, report: Report) -> Worker | None:
        worker = self.workers.get(name)
        if worker is not None and report.number <= worker.number:
            return None
        fresh = worker is None
        worker = worker or Worker(list(report.heard), list(report.spent))
        for flow in range(FLOWS):
            total = max(report.granted[flow], report.spent[flow])
            more = total - worker.granted[flow]
            self.take(flow, report.limits[flow], max(0, more) if fresh else more)
            worker.granted[flow], worker.spent[flow] = total, report.spent[flow]
        worker.number, worker.until = report.number, now + ttl
        worker.running, worker.held = report.running, report.held
        self.workers[name] = worker
        return worker

    def wanted_of(self, report: Report, flow: int) -> int:
        need, limit, worst = report.need[flow], report.limits[flow], report.worst[flow]
        if flow >= RATES and limit >= 0 and need > 0:
            left = self.left(flow, limit)
            if left * NEAR_PARTS < limit or left < NEAR_REQUESTS * worst:
                alone = worst > left and self.unspent(flow) == 0
                return max(left if alone else worst, min(need, 1))
        return need

    def share(self, now: int, name: str) -> Share:
        worker = self.workers.get(name)
        others = [w for n, w in self.workers.items() if n != name]
        budgets = range(RATES, FLOWS)
        return Share(
            granted=amounts(worker.granted) if worker else (0,) * 6,
            held=worker.held if worker else 0,
            levels=tuple(self.left(f, 0) for f in range(RATES)),
            booked=tuple(sum(b.amounts[f] for b in self.bookings) for f in range(RATES)),
            used=tuple(self.budgets[f].used if f in self.budgets else -1 for f in budgets),
            shared=tuple(self.unspent(f) for f in budgets),
            lapsed=tuple(self.budgets[f].lapsed if f in self.budgets else 0 for f in budgets),
            running=sum(w.running for w in self.workers.values()),
            idle_slots=sum(max(0, w.held - w.running) for w in others),
            wanted=self.wanted > now,
            due=tuple(b.digest for b in self.bookings if b.at <= now + SOON_MS),
        )


def amounts(row: Sequence[int]) -> Amounts:
    a, b, c, d, e, f = row
    return a, b, c, d, e, f


class MemoryLimits(MemoryCoordination):
    def __init__(self, clock) -> None:
        super().__init__(clock)
        self._subjects: dict[str, Subject] = {}
        self._claims: dict[str, int] = {}

    def _subject(self, name: str, now: int, limits: Sequence[int]) -> Subject:
        subject = self._subjects.setdefault(name, Subject())
        subject.update(now, limits)
        return subject

    async def seed(self, subject: str, used: Mapping[int, int]) -> None:
        now = self._now()
        found = self._subject(subject, now, (-1, -1))
        for flow, amount in used.items():
            if flow not in found.budgets:
                found.budgets[flow] = Budget(amount + found.unspent(flow), period_of(flow, now))

    async def correct(self, subject: str, flow: int, period: int, more: int, *, settled: int) -> None:
        found = self._subject(subject, self._now(), (-1, -1))
        budget = found.budgets.get(flow)
        if budget is not None and budget.period == period:
            budget.used = max(0, budget.used + more)
            budget.lapsed = max(0, budget.lapsed - settled)

    async def looks(self, subjects: Sequence[tuple[str, Amounts]]) -> list[Share]:
        now = self._now()
        shares = []
        for name, limits in subjects:
            found = deepcopy(self._subjects.get(name, Subject()))
            found.update(now, limits)
            shares.append(found.share(now, ""))
        return shares

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
        before = {report.subject: deepcopy(self._subjects.get(report.subject)) for report in reports}
        subjects, workers = [], []
        for i, report in enumerate(reports):
            subject = self._subject(report.subject, now, report.limits)
            record = subject.account(now, ttl_ms, worker, report)
            if record is None:  # the script has saved nothing of the reports before it
                self._subjects |= {name: kept or Subject() for name, kept in before.items()}
                return Answer(Verdict.STALE, i)
            subjects.append(subject)
            workers.append(record)
        verdict, where, what, wait, places = judge(now, subjects, reports, digest, again)
        booked, reserved = False, []
        if verdict is Verdict.GRANTED:
            for subject, record, report, booking in zip(subjects, workers, reports, places, strict=True):
                if booking is not None:
                    subject.bookings.remove(booking)
                    for flow in range(RATES):
                        subject.take(flow, report.limits[flow], -booking.amounts[flow])
                granted = [subject.wanted_of(report, flow) for flow in range(FLOWS)]
                for flow in range(FLOWS):
                    subject.take(flow, report.limits[flow], granted[flow])
                    record.granted[flow] += granted[flow]
                record.held += report.need_slots
                reserved.append(amounts(granted))
        elif verdict is Verdict.RATE and places is None:
            booked = True
        elif verdict is Verdict.RATE and digest:
            booked = all(len(s.bookings) < MOST_BOOKINGS for s in subjects)
            for subject, report in zip(subjects, reports, strict=True) if booked else ():
                if rated(report):
                    for flow in range(RATES):
                        subject.take(flow, report.limits[flow], report.need[flow])
                    subject.bookings.append(Booking(now + wait, digest, report.need[:2]))
                    subject.bookings.sort(key=lambda b: b.at)
        for subject, record, report in zip(subjects, workers, reports, strict=True):
            for flow, more in enumerate(report.more):
                limit = report.limits[flow]
                if more > 0 and limit >= 0 and subject.known(flow) and not subject.bookings:
                    left = subject.left(flow, limit)
                    if flow < RATES or left * NEAR_PARTS >= limit:
                        extra = max(0, min(more, left // 4))
                        subject.take(flow, limit, extra)
                        record.granted[flow] += extra
            if report.more_slots > 0 and report.slots >= 0 and subject.wanted <= now:
                record.held += max(0, min(report.more_slots, (report.slots - subject.held()) // 4))
        shares = tuple(subject.share(now, worker) for subject in subjects)
        return Answer(verdict, where, what, wait, booked, tuple(reserved), shares)


def rated(report: Report) -> bool:
    return any(report.limits[flow] >= 0 and report.need[flow] > 0 for flow in range(RATES))


def judge(  # noqa: C901, PLR0912  # one decision, in the order of the Lua script
    now: int, subjects: list[Subject], reports: Sequence[Report], digest: str, again: bool
):
    for i, (subject, report) in enumerate(zip(subjects, reports, strict=True)):
        if report.need_slots > 0 and 0 <= report.slots < subject.held() + report.need_slots:
            subject.wanted = now + WANTED_MS
            return Verdict.SLOTS, i, 0, 0, None
        for flow in range(RATES, FLOWS):
            if report.limits[flow] >= 0 and report.need[flow] > 0:
                if flow not in subject.budgets:
                    return Verdict.UNSEEDED, i, flow, 0, None
                if subject.wanted_of(report, flow) > subject.left(flow, report.limits[flow]):
                    return Verdict.BUDGET, i, flow, 0, None
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
        for flow in range(RATES):
            limit, need = report.limits[flow], report.need[flow] * MINUTE_MS
            rate = subject.rates[flow]
            if limit >= 0 and need > 0 and rate is not None and rate[0] < need:
                ms = -((rate[0] - need) // limit) if limit else 60_000
                if ms > wait:
                    wait, where, what = ms, i, flow
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

"""Limits and budgets: each store grants what the protocol promises, and no more."""

from __future__ import annotations

import itertools
from dataclasses import replace
from datetime import UTC, datetime

from adapters.store.protocol.limits import (
    LAPSE_MS,
    MOST_BOOKINGS,
    UNLIMITED,
    Answer,
    Report,
    Verdict,
    begun,
)
from tests.support.flows import (
    NONE,
    NOTHING,
    Place,
    amounts,
    flows_at,
    limits,
)

TTL_MS = 5_000


async def seed(installation, subject: str = "tenant:acme", **used: int) -> None:
    flows = flows_at(installation.now)
    places = [Place[name.upper()] for name in used]
    await installation.store.seed(subject, [flows[place] for place in places], list(used.values()))


class Worker:
    """Reports as a worker does: cumulative, numbered."""

    def __init__(self, store, name: str, limit=NONE, slots: int = UNLIMITED, subject: str = "tenant:acme"):
        self.store, self.name, self.limit, self.slots, self.subject = store, name, limit, slots, subject
        self.number, self.running, self.held = 0, 0, 0
        self.heard = self.granted = self.spent = NOTHING

    def report(self, **how) -> Report:
        self.number += 1
        state = {"running": self.running, "held": self.held}
        numbers = (self.number, self.heard, self.granted, self.spent)
        flows = flows_at(self.store._clock())
        return Report(self.subject, flows, self.limit, self.slots, *numbers, **(state | how))

    async def ask(self, digest: str = "", again: bool = False, **how) -> Answer:
        answer = await self.store.lease(
            self.name, [self.report(**how)], ttl_ms=TTL_MS, digest=digest, again=again
        )
        if answer.shares:
            self.heard = self.granted = answer.shares[0].granted
            self.held = answer.shares[0].held
        return answer

    async def take(self, digest: str = "", again: bool = False, **flows: int) -> Answer:
        need = amounts(**flows)
        return await self.ask(digest, again, need=need, worst=need)


async def test_a_rate_grants_a_minutes_limit_at_once_and_then_refills(installation):
    worker = Worker(installation.store, "w1", limits(requests=10))
    assert [(await worker.take(requests=1)).verdict for _ in range(11)] == [Verdict.GRANTED] * 10 + [
        Verdict.RATE
    ]
    refused = await worker.take(requests=1)
    assert (refused.flow, refused.wait_ms) == (Place.REQUESTS, 6_000)
    installation.advance(5_999)
    assert (await worker.take(requests=1)).wait_ms == 1
    installation.advance(1)
    assert (await worker.take(requests=1)).verdict is Verdict.GRANTED


async def test_workers_share_one_rate(installation):
    one = Worker(installation.store, "w1", limits(requests=10))
    two = Worker(installation.other, "w2", limits(requests=10))
    granted = [(await w.take(requests=1)).verdict is Verdict.GRANTED for _ in range(10) for w in (one, two)]
    assert sum(granted) == 10


async def test_a_share_is_a_quarter_of_what_is_left_at_most(installation):
    worker = Worker(installation.store, "w1", limits(tokens=1000))
    answer = await worker.ask(more=amounts(tokens=900))
    assert answer.shares[0].granted[Place.TOKENS] == 250
    assert answer.shares[0].used[1] == 250


async def test_what_is_given_back_can_be_granted_again(installation):
    one = Worker(installation.store, "w1", limits(tokens=100))
    await one.take(tokens=100)
    two = Worker(installation.other, "w2", limits(tokens=100))
    assert (await two.take(tokens=60)).verdict is Verdict.RATE
    one.granted = one.spent = amounts(tokens=30)
    await one.ask()
    assert (await two.take(tokens=60)).verdict is Verdict.GRANTED


async def test_debt_delays_what_comes_later(installation):
    worker = Worker(installation.store, "w1", limits(tokens=60))
    await worker.take(tokens=60)
    worker.spent = worker.granted = amounts(tokens=90)  # 30 more than it had
    answer = await worker.take(tokens=10)
    assert (answer.verdict, answer.wait_ms) == (Verdict.RATE, 40_000)


async def test_a_call_counts_once_however_often_it_arrives(installation):
    worker = Worker(installation.store, "w1", limits(tokens=100))
    report = worker.report(need=amounts(tokens=40))
    first = await installation.store.lease("w1", [report], ttl_ms=TTL_MS)
    assert first.verdict is Verdict.GRANTED
    assert (await installation.store.lease("w1", [report], ttl_ms=TTL_MS)).verdict is Verdict.STALE
    [share] = await installation.store.looks(
        [("tenant:acme", flows_at(installation.now), limits(tokens=100))]
    )
    assert share.used[1] == 40


async def test_a_grant_whose_reply_was_lost_is_given_back_by_the_next_report(installation):
    worker = Worker(installation.store, "w1", limits(tokens=100))
    await installation.store.lease("w1", [worker.report(need=amounts(tokens=40))], ttl_ms=TTL_MS)
    answer = await worker.ask()
    assert answer.shares[0].granted == NOTHING
    assert answer.shares[0].used[1] == 0


async def test_both_subjects_grant_or_neither(installation):
    store = installation.store
    tenant = Worker(store, "w1", limits(requests=5))
    key = Worker(store, "w1", limits(requests=1), subject="key:k1")
    need = amounts(requests=1)
    ask = [key.report(need=need), tenant.report(need=need)]
    assert (await store.lease("w1", ask, ttl_ms=TTL_MS)).verdict is Verdict.GRANTED
    key.granted = tenant.granted = need
    ask = [key.report(need=need), tenant.report(need=need)]
    refused = await store.lease("w1", ask, ttl_ms=TTL_MS)
    assert (refused.verdict, refused.subject) == (Verdict.RATE, 0)
    assert refused.shares[1].used[0] == 1


# -- bookings


async def test_a_booked_request_gets_through_whoever_comes_before(installation):
    limit = limits(requests=60)
    worker = Worker(installation.store, "w1", limit)
    await worker.take(requests=60)
    booked = await worker.take("a", requests=1)
    assert (booked.verdict, booked.wait_ms, booked.booked) == (Verdict.RATE, 1000, True)
    installation.advance(999)
    thief = Worker(installation.other, "w2", limit)
    assert (await thief.take("b", requests=1)).wait_ms == 1001
    installation.advance(1)
    assert (await thief.take("c", requests=1)).verdict is Verdict.RATE
    assert (await worker.take("a", requests=1)).verdict is Verdict.GRANTED


async def test_identical_requests_get_a_booking_each(installation):
    worker = Worker(installation.store, "w1", limits(requests=60))
    await worker.take(requests=60)
    assert [(await worker.take("a", requests=1)).wait_ms for _ in range(3)] == [1000, 2000, 3000]
    installation.advance(1000)
    assert (await worker.take("a", requests=1)).verdict is Verdict.GRANTED


async def test_a_client_that_comes_too_early_keeps_its_booking(installation):
    worker = Worker(installation.store, "w1", limits(requests=60))
    await worker.take(requests=60)
    await worker.take("a", requests=1)
    installation.advance(400)
    early = await worker.take("a", again=True, requests=1)
    assert (early.wait_ms, early.booked) == (600, True)
    [share] = await installation.store.looks(
        [("tenant:acme", flows_at(installation.now), limits(requests=60))]
    )
    assert (share.due, share.used[0], share.booked[:2]) == (("a",), 61, (1, 0))


async def test_a_booking_lapses_and_its_place_is_free_again(installation):
    worker = Worker(installation.store, "w1", limits(requests=60))
    await worker.take(requests=60)
    await worker.take("a", requests=1)
    installation.advance(1000 + LAPSE_MS + 1)
    answer = await worker.take(requests=7)
    assert answer.verdict is Verdict.GRANTED
    assert answer.shares[0].due == ()


async def test_bookings_are_bounded(installation):
    worker = Worker(installation.store, "w1", limits(requests=6000))
    await worker.take(requests=6000)
    for number in range(MOST_BOOKINGS):
        assert (await worker.take(f"r{number}", requests=1)).booked
    beyond = await worker.take("one more", requests=1)
    assert (beyond.booked, beyond.wait_ms) == (False, 10 * (MOST_BOOKINGS + 1))


# -- slots


async def test_slots_are_never_exceeded_and_those_of_a_silent_worker_come_back(installation):
    one, two = Worker(installation.store, "w1", slots=2), Worker(installation.other, "w2", slots=2)
    for _ in range(2):
        assert (await one.ask(need_slots=1)).verdict is Verdict.GRANTED
        one.running += 1
    await one.ask()
    refused = await two.ask(need_slots=1)
    assert refused.verdict is Verdict.SLOTS
    assert (refused.shares[0].idle_slots, refused.shares[0].running, refused.shares[0].wanted) == (0, 2, True)
    one.running -= 1
    await one.ask()
    assert (await two.ask(need_slots=1)).shares[0].idle_slots == 1
    installation.advance(TTL_MS)
    assert (await two.ask(need_slots=1)).verdict is Verdict.GRANTED


# -- budgets


async def test_an_unknown_budget_grants_nothing_until_it_is_seeded(installation):
    worker = Worker(installation.store, "w1", limits(tokens_per_day=1000))
    assert (await worker.take(tokens_per_day=1)).verdict is Verdict.UNSEEDED
    await seed(installation, tokens_per_day=999)
    await seed(installation, tokens_per_day=0)  # too late
    assert (await worker.take(tokens_per_day=1)).verdict is Verdict.GRANTED
    refused = await worker.take(tokens_per_day=1)
    assert (refused.verdict, refused.flow) == (Verdict.BUDGET, Place.TOKENS_PER_DAY)


async def test_near_its_end_a_budget_reserves_the_worst_case(installation):
    worker = Worker(installation.store, "w1", limits(tokens_per_day=1000))
    await seed(installation, tokens_per_day=895)
    need, worst = amounts(tokens_per_day=1), amounts(tokens_per_day=5)
    first = await worker.ask(need=need, worst=worst)
    assert first.reserved[0][Place.TOKENS_PER_DAY] == 1
    await worker.take(tokens_per_day=5)
    near = await worker.ask(need=need, worst=worst)
    assert near.reserved[0][Place.TOKENS_PER_DAY] == 5
    assert (await worker.ask(need=need, worst=amounts(tokens_per_day=95))).verdict is Verdict.BUDGET
    worker.spent = worker.granted
    last = await worker.ask(need=need, worst=amounts(tokens_per_day=5000))
    assert last.reserved[0][Place.TOKENS_PER_DAY] == 94
    assert (await worker.ask(need=need, worst=worst)).verdict is Verdict.BUDGET


async def test_only_one_request_at_a_time_may_exceed_what_is_left_of_a_budget(installation):
    worker = Worker(installation.store, "w1", limits(tokens_per_day=100))
    await seed(installation, tokens_per_day=0)
    each = amounts(tokens_per_day=30)
    for _ in range(3):
        assert (await worker.ask(need=each, worst=each)).verdict is Verdict.GRANTED
    for _ in range(3):
        # Each ends with 25, and gives back 5: never enough for another beside those that run.
        assert (await worker.ask(need=each, worst=each)).verdict is Verdict.BUDGET
        worker.spent = amounts(tokens_per_day=worker.spent[Place.TOKENS_PER_DAY] + 25)
        worker.granted = amounts(tokens_per_day=worker.granted[Place.TOKENS_PER_DAY] - 5)
    last = await worker.ask(need=each, worst=each)
    assert last.reserved[0][Place.TOKENS_PER_DAY] == 25
    assert (await worker.ask(need=each, worst=each)).verdict is Verdict.BUDGET


async def test_a_new_day_begins_with_what_is_in_flight(installation):
    installation.now = int(datetime(2026, 11, 30, 23, 59, tzinfo=UTC).timestamp() * 1000)
    limit = limits(tokens_per_day=100, tokens_per_month=1000)
    worker = Worker(installation.store, "w1", limit)
    await seed(installation, tokens_per_day=0, tokens_per_month=0)
    for _ in range(60):
        await worker.take(tokens_per_day=1, tokens_per_month=1)
        worker.spent = (
            amounts(tokens_per_day=1, tokens_per_month=1) if worker.spent == NOTHING else worker.spent
        )
    for _ in range(30):
        installation.advance(2_000)
        answer = await worker.ask()
    assert answer.shares[0].used[2:] == (59, 59, -1, -1, -1)  # one was spent before midnight


async def test_the_budget_share_of_a_silent_worker_counts_as_used_until_it_is_corrected(installation):
    limit = limits(money_per_month=10**15)
    worker = Worker(installation.store, "w1", limit)
    await seed(installation, money_per_month=10**14 + 1)
    await worker.take(money_per_month=1000)
    installation.advance(TTL_MS)
    [share] = await installation.other.looks([("tenant:acme", flows_at(installation.now), limit)])
    assert (share.used[5], share.shared[5], share.lapsed[5]) == (10**14 + 1001, 0, 1000)
    flow = flows_at(installation.now)[Place.MONEY_PER_MONTH]
    period = begun(flow, installation.now)
    await installation.other.correct("tenant:acme", flow, period - 1, -400, settled=1000)
    await installation.other.correct("tenant:acme", flow, period, -400, settled=1000)
    [share] = await installation.other.looks([("tenant:acme", flows_at(installation.now), limit)])
    assert (share.used[5], share.lapsed[5]) == (10**14 + 601, 0)


async def test_a_worker_that_comes_back_cannot_give_back_what_has_lapsed(installation):
    limit = limits(tokens_per_day=100)
    worker = Worker(installation.store, "w1", limit)
    await seed(installation, tokens_per_day=0)
    await worker.take(tokens_per_day=40)
    installation.advance(TTL_MS)
    worker.granted = NOTHING
    answer = await worker.ask()
    assert (answer.shares[0].used[2], answer.shares[0].lapsed[2]) == (40, 40)
    worker.spent = amounts(tokens_per_day=10)
    assert (await worker.ask()).shares[0].used[2] == 50


async def test_a_rolling_budget_comes_back_step_by_step(installation):
    """Nothing comes back before it is as old as the window, and all of it a thirtieth of that later."""
    step = 10 * 60_000
    worker = Worker(installation.store, "w1", limits(tokens_per_5h=100))
    await seed(installation, tokens_per_5h=10)
    spent = 0
    for tokens in (40, 50):
        await worker.take(tokens_per_5h=tokens)
        spent += tokens
        worker.spent = amounts(tokens_per_5h=spent)
        await worker.ask()
        installation.advance(2 * step)
    assert (await worker.take(tokens_per_5h=1)).verdict is Verdict.BUDGET
    installation.advance(26 * step - 1)
    assert (await worker.take(tokens_per_5h=1)).verdict is Verdict.BUDGET  # not yet 5 hours
    installation.advance(step + 1)
    assert (await worker.ask()).shares[0].used[Place.TOKENS_PER_5H] == 50
    installation.advance(2 * step)
    assert (await worker.ask()).shares[0].used[Place.TOKENS_PER_5H] == 0


async def test_the_rolling_share_of_a_silent_worker_counts_until_the_window_has_passed(installation):
    worker = Worker(installation.store, "w1", limits(tokens_per_5h=100))
    await seed(installation, tokens_per_5h=0)
    await worker.take(tokens_per_5h=30)
    installation.advance(TTL_MS)
    other = Worker(installation.other, "w2", limits(tokens_per_5h=100))
    share = (await other.ask()).shares[0]
    assert (share.used[Place.TOKENS_PER_5H], share.lapsed[Place.TOKENS_PER_5H]) == (30, 0)
    installation.advance(5 * 3_600_000 + 10 * 60_000)
    assert (await other.ask()).shares[0].used[Place.TOKENS_PER_5H] == 0


async def test_a_family_begins_at_zero_is_bounded_and_forgets(installation):
    calls = itertools.count(1)

    async def ask(user: str, most: int) -> Verdict:
        flow = flows_at(installation.now)[Place.TOKENS_PER_5H]
        subject, number = f"tenant:acme/user:{user}", next(calls)
        report = Report(
            subject, (flow,), (100,), UNLIMITED, number, (0,), (0,), (0,),
            need=(60,), worst=(60,), family="acme", most=most,
        )  # fmt: skip
        return (await installation.store.lease("w1", [report], ttl_ms=TTL_MS)).verdict

    verdicts = [await ask(user, 2) for user in ("one", "two", "three")]
    assert verdicts == [Verdict.GRANTED, Verdict.GRANTED, Verdict.CROWDED]
    assert await ask("three", 3) is Verdict.GRANTED
    assert await ask("one", 1) is Verdict.GRANTED  # it is one of them; and has given back what it had
    for verdict in (Verdict.GRANTED, Verdict.BUDGET):  # what is left, and nothing
        installation.advance(TTL_MS)
        assert await ask("one", 1) is verdict
    installation.advance(5 * 3_600_000 + 10 * 60_000)
    assert await ask("four", 1) is Verdict.GRANTED  # nobody else counts any more


async def test_what_limits_in_shadow_would_have_refused_is_counted_by_day(installation):
    store = installation.store
    await store.add_refused(7, {"acme": {"tenant tokens_per_day": 2}, "bolt": {"tag concurrent": 1}})
    await installation.other.add_refused(7, {"acme": {"tenant tokens_per_day": 3, "key concurrent": 1}})
    assert await store.refused("acme", [6, 7]) == [{}, {"tenant tokens_per_day": 5, "key concurrent": 1}]


async def test_a_claim_is_somebodys_until_it_ends(installation):
    store = installation.store
    assert await store.claim_once("x", 10_000)
    assert not await installation.other.claim_once("x", 10_000)
    await store.keep_claim("x", 0)
    assert await store.claim_once("x", 10_000)


async def test_a_report_may_change_limits_at_any_time(installation):
    worker = Worker(installation.store, "w1", limits(tokens=100))
    await worker.take(tokens=100)
    for limit in (NONE, limits(tokens=10), limits(tokens=1000), limits(tokens=0)):
        changed = replace(worker.report(), limits=limit)
        await installation.store.lease("w1", [changed], ttl_ms=TTL_MS)
    worker.limit = limits(tokens=0)
    assert (await worker.take(tokens=1)).verdict is Verdict.RATE

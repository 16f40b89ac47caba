"""Limits and budgets over workers, clocks, crashes and lost connections.

First the script against its model, call by call. Then whole workers: what they admit stays within the bounds
that docs/limits.md states, a client that obeys `retry-after` gets through, and shares come back.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from decimal import Decimal
from unittest.mock import patch

from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from adapters.store.protocol.limits import Report, Verdict, begun
from adapters.store.redis import RedisStore
from gateway.errors import FlorinError
from gateway.tenants.limits import limiter as limiter_module
from gateway.tenants.limits.grant import Grant
from gateway.tenants.limits.subject_account import SHARE_SECONDS
from gateway.tenants.terms import Budget, Limits, rule_of
from gateway.units import NANO
from tests.doubles.memory_store import MemoryStore
from tests.support.flows import BUDGETS, NOTHING, Place, flows_at
from tests.support.limited import Workers, call
from tests.support.search import examples
from tests.support.waiting import PATIENCE_S

SUBJECTS = ("tenant:a", "key:b")
small = st.integers(0, 40)
vectors = st.tuples(*[small] * len(Place))
limit_vectors = st.tuples(*[st.sampled_from((0, 5, 60, 1000, 10**9))] * len(Place))
some_flows = st.sets(st.sampled_from(Place), min_size=1).map(sorted)
reports = st.fixed_dictionaries(
    {
        "flows": some_flows,
        "limits": limit_vectors,
        "slots": st.sampled_from((-1, 0, 1, 3)),
        "back": vectors,
        "spend": vectors,
        "running": st.integers(0, 3),
        "held": st.integers(0, 4),
        "need": vectors,
        "worst": vectors,
        "need_slots": st.integers(0, 1),
        "more": vectors,
        "more_slots": st.integers(0, 3),
        "family": st.sampled_from(("", "", "f")),
        "most": st.integers(1, 2),
    }
)
leases = st.fixed_dictionaries(
    {
        "do": st.just("lease"),
        "worker": st.sampled_from(("w1", "w2")),
        "reports": st.lists(reports, min_size=1, max_size=2),
        "digest": st.sampled_from(("", "d1", "d2")),
        "again": st.booleans(),
        "stale": st.sampled_from((False, False, False, True)),
    }
)
seeds = st.fixed_dictionaries(
    {
        "do": st.just("seed"),
        "subject": st.sampled_from(SUBJECTS),
        "used": st.dictionaries(st.sampled_from(BUDGETS), small),
    }
)
corrections = st.fixed_dictionaries(
    {
        "do": st.just("correct"),
        "subject": st.sampled_from(SUBJECTS),
        "flow": st.sampled_from(BUDGETS),
        "more": st.integers(-20, 20),
        "settled": small,
    }
)
passing = st.fixed_dictionaries(
    {"do": st.just("wait"), "ms": st.sampled_from((1, 50, 999, 3000, 7000, 600_000, 18_000_000, 90_000_000))}
)
looks = st.fixed_dictionaries({"do": st.just("look"), "limits": limit_vectors})
steps = st.lists(st.one_of(leases, leases, leases, leases, seeds, corrections, passing, looks), max_size=30)


class Twin:
    """The same calls to both stores."""

    def __init__(self, model: MemoryStore, script: RedisStore) -> None:
        self.stores = (model, script)
        self.now = 1_795_000_000_000
        self.number = 0
        self.heard: dict[tuple[str, str], list[int]] = {}
        self.spent: dict[tuple[str, str], list[int]] = {}

    async def both(self, name: str, *arguments, **how):
        one, other = [await getattr(store, name)(*arguments, **how) for store in self.stores]
        assert one == other
        return one

    async def step(self, step: dict) -> None:
        match step["do"]:
            case "wait":
                self.now += step["ms"]
            case "seed":
                flows = flows_at(self.now)
                used = step["used"]
                await self.both("seed", step["subject"], [flows[f] for f in used], list(used.values()))
            case "look":
                await self.both(
                    "looks", [(subject, flows_at(self.now), step["limits"]) for subject in SUBJECTS]
                )
            case "correct":
                flow = flows_at(self.now)[step["flow"]]
                how = {"settled": step["settled"]}
                await self.both("correct", step["subject"], flow, begun(flow, self.now), step["more"], **how)
            case "lease":
                await self.lease(step)

    async def lease(self, step: dict) -> None:
        worker, reports = step["worker"], []
        for subject, how in zip(SUBJECTS, step["reports"], strict=False):
            known = worker, subject
            self.number += not step["stale"]
            places = how["flows"]
            heard = self.heard.setdefault(known, list(NOTHING))
            spent = self.spent.setdefault(known, list(NOTHING))
            for place in places:
                spent[place] += how["spend"][place]
            granted = [max(0, a - b) for a, b in zip(heard, how["back"], strict=True)]
            vectors = {
                name: tuple(values[place] for place in places)
                for name, values in (
                    ("limits", how["limits"]), ("heard", heard), ("granted", granted), ("spent", spent),
                    ("need", how["need"]), ("worst", how["worst"]), ("more", how["more"]),
                )
            }  # fmt: skip
            flows = tuple(flows_at(self.now)[place] for place in places)
            rest = {k: v for k, v in how.items() if k not in {*vectors, "flows", "back", "spend"}}
            reports.append(Report(subject, flows, number=self.number, **vectors, **rest))
        answer = await self.both(
            "lease", worker, reports, ttl_ms=4000, digest=step["digest"], again=step["again"]
        )
        for report, how, share in zip(reports, step["reports"], answer.shares, strict=False):
            for place, granted in zip(how["flows"], share.granted, strict=True):
                self.heard[worker, report.subject][place] = granted


@examples(60, suppress=(HealthCheck.function_scoped_fixture,))
@given(steps=steps)
async def test_the_script_decides_as_its_model(valkey_url, fresh_prefix, steps):
    twin: Twin
    script = RedisStore(valkey_url, prefix=fresh_prefix(), clock=lambda: twin.now, timeout=PATIENCE_S)
    twin = Twin(MemoryStore(clock=lambda: twin.now), script)
    try:
        for step in steps:
            await twin.step(step)
    finally:
        await script.close()


async def test_a_call_with_one_stale_report_changes_nothing(valkey_url, fresh_prefix):
    """Not even for the subjects whose reports are new."""
    now = 1_795_000_000_000
    script = RedisStore(valkey_url, prefix=fresh_prefix(), clock=lambda: now, timeout=PATIENCE_S)
    limits = (60, 1000, 60, 60, 60, 60, 60)
    flows = flows_at(now)

    def report(subject: str, number: int, **fields) -> Report:
        return Report(subject, flows, limits, 5, number, NOTHING, NOTHING, **({"spent": NOTHING} | fields))

    try:
        for store in (MemoryStore(clock=lambda: now), script):
            for subject in SUBJECTS:
                await store.seed(subject, [flows[place] for place in BUDGETS], [0] * len(BUDGETS))
            made = [report(subject, number) for number, subject in enumerate(SUBJECTS, 1)]
            assert (await store.lease("w", made, ttl_ms=4000)).verdict is Verdict.GRANTED
            before = await store.looks([(subject, flows, limits) for subject in SUBJECTS])
            new = report(SUBJECTS[0], 2, spent=(1,) * len(Place), held=1)
            assert (await store.lease("w", [new, made[1]], ttl_ms=4000)).verdict is Verdict.STALE
            assert await store.looks([(subject, flows, limits) for subject in SUBJECTS]) == before
    finally:
        await script.close()


# -- whole workers


@dataclass
class Running:
    grant: Grant
    worker: object
    began: float
    reserved: int
    """Tokens."""
    actual: tuple[int, int]
    ended: float = math.inf

    def beyond(self) -> int:
        """Tokens beyond its reservation."""
        return max(0, sum(self.actual) - self.reserved)


@contextmanager
def sleeping(workers: Workers) -> Iterator[None]:
    """Pauses of the limiter take the test's time."""

    async def sleep(seconds: float) -> None:
        workers.ms += int(seconds * 1000)

    with patch.object(limiter_module.asyncio, "sleep", sleep):
        yield


def _reserved_tokens(grant: Grant) -> int:
    """Of the tenant's budget."""
    amounts = [
        amount
        for _, holdings, taken in grant._held
        for holding, amount in zip(holdings, taken, strict=True)
        if holding.counter.measure == "tokens" and not holding.is_rate
    ]
    return max(amounts, default=0)


class Bench:
    """What was admitted, when, and what it used."""

    def __init__(self, workers: Workers) -> None:
        self.workers = workers
        self.running: list[Running] = []
        self.all: list[Running] = []

    async def start(self, index: int, prompt: int, most: int, actual: tuple[int, int]) -> None:
        worker = self.workers.limiters[index % len(self.workers.limiters)]
        request = replace(call(prompt, most, size=2 * prompt, text=str(len(self.all))), end_user="ann")
        try:
            grant = await self.workers.enter(index, request)
        except FlorinError as error:
            if error.status not in (429, 503):
                raise
            return
        reserved = _reserved_tokens(grant)
        made = Running(
            grant, worker, self.workers.clock(), reserved, (min(actual[0], 2 * prompt), min(actual[1], most))
        )
        self.running.append(made)
        self.all.append(made)

    def end(self, nth: int, actual: tuple[int, int] | None = None) -> None:
        if self.running:
            request = self.running.pop(nth % len(self.running))
            request.actual = actual or request.actual
            request.ended = self.workers.clock()
            request.grant.count(request.actual[0], 0, request.actual[1], choices=1)
            request.grant.settle()
            request.grant.settle()

    def kill(self, index: int) -> None:
        dead = self.workers.limiters[index % len(self.workers.limiters)]
        self.workers.kill(index % len(self.workers.limiters))
        for request in [r for r in self.running if r.worker is dead]:
            request.ended = self.workers.clock()
            self.running.remove(request)


begins = st.tuples(
    st.just("start"), st.integers(0, 2), st.integers(1, 40), st.integers(1, 60),
    st.tuples(st.integers(0, 80), st.integers(0, 60)),
)  # fmt: skip
ends = st.tuples(st.just("end"), st.integers(0, 20))
waits = st.tuples(st.just("wait"), st.sampled_from((0, 10, 150, 1000, 5000, 20_000)))
kills = st.tuples(st.just("kill"), st.integers(0, 2))
losses = st.tuples(st.just("lose"), st.integers(0, 2), st.sampled_from(("request", "reply")))
bursts = st.lists(begins, min_size=1, max_size=12)
lives = st.lists(
    st.one_of(
        bursts,
        bursts,
        ends.map(lambda e: [e] * 4),
        waits.map(lambda w: [w]),
        kills.map(lambda k: [k]),
        losses.map(lambda x: [x]),
    ),
    max_size=25,
).map(lambda parts: [step for part in parts for step in part])


async def live(bench: Bench, life) -> None:
    workers = bench.workers
    with sleeping(workers):
        for step in life:
            match step:
                case ("start", index, prompt, most, actual):
                    await bench.start(index, prompt, most, actual)
                case ("end", nth):
                    bench.end(nth)
                case ("end cheaply", nth, output):
                    bench.end(nth, (1, output))
                case ("wait", ms):
                    await workers.pass_time(ms)
                case ("kill", index):
                    bench.kill(index)
                case ("lose", index, how):
                    workers.stores[index % len(workers.stores)].lose.append(how)
            held = sum(
                a.running
                for w in workers.limiters
                for a in w.counters.accounts.values()
                if a.subject.startswith("tenant:acme")
            )
            assert held == len(bench.running)


@examples(40)
@given(life=lives, rpm=st.sampled_from((6, 60, 600)))
async def test_rates_hold_over_workers_crashes_and_lost_calls(life, rpm: int):
    """In any interval, at most the limit and its refill, and what the shares of SHARE_SECONDS before allow."""
    workers = Workers(Limits(requests_per_minute=rpm), count=3, limits_when_store_away="closed")
    bench = Bench(workers)
    await live(bench, life)
    times = [r.began for r in bench.all]
    for i, first in enumerate(times):
        for j in range(i, len(times)):
            assert j - i + 1 <= rpm * (1 + (times[j] - first + SHARE_SECONDS) / 60) + 1e-6


@examples(40)
@given(life=lives, slots=st.integers(1, 5))
async def test_slots_hold_and_come_back(life, slots: int):
    workers = Workers(Limits(concurrent=slots), count=3, limits_when_store_away="closed")
    bench = Bench(workers)
    most = 0
    start = bench.start

    async def counted(*how) -> None:
        nonlocal most
        await start(*how)
        most = max(most, len(bench.running))

    bench.start = counted  # type: ignore[method-assign]
    await live(bench, life)
    assert most <= slots
    while bench.running:
        bench.end(0)
    await workers.pass_time(8_000)
    for store in workers.stores:
        store.lose.clear()
    await workers.pass_time(8_000)
    before = len(bench.running)
    with sleeping(workers):
        for _ in range(slots):
            await bench.start(0, 1, 1, (1, 1))
    assert len(bench.running) == before + slots


@examples(40)
@given(
    life=lives,
    budget=st.sampled_from((50, 300, 2000)),
    used=st.sampled_from((0, 40)),
    counted=st.sampled_from(("tokens/day", "tokens/5h", "user:tokens/5h", "user:tokens/day")),
)
async def test_a_budget_is_overrun_by_no_more_than_was_in_flight(life, budget: int, used: int, counted: str):
    """The requests in flight at the last grant may use what they did not reserve, and those that ended since
    their worker's last report. So it is of every level, and in every window: no life lasts five hours."""
    of_user = counted.startswith("user:")
    used = 0 if of_user else used  # the ledger is not asked
    workers = Workers(
        Limits(rules=(rule_of(f"{counted}={budget}"),)), count=3, used=used, limits_when_store_away="closed"
    )
    bench = Bench(workers)
    await live(bench, life)
    while bench.running:
        bench.end(0)
    bound = max(
        (
            sum(r.beyond() for r in bench.all if r.began <= g.began and r.ended > g.began - 1)
            for g in bench.all
        ),
        default=0,
    )
    total = used + sum(sum(r.actual) for r in bench.all)
    assert total <= max(budget, used) + bound
    for store in workers.stores:
        store.lose.clear()
    await workers.pass_time(8_000)
    [share] = (await workers.share("tenant:acme/user:ann" if of_user else "tenant:acme")).values()
    assert share.shared == (0,)


MOST = 2 * 20 * 1_000 + 30 * 10_000
"""What a greedy request can cost."""
greedy = st.tuples(st.just("start"), st.integers(0, 2), st.just(20), st.just(30), st.just((40, 30)))
cheap_ends = st.tuples(st.just("end cheaply"), st.integers(0, 20), st.integers(0, 15))
crowds = st.lists(
    st.tuples(st.lists(greedy, max_size=6), st.lists(cheap_ends, max_size=3), st.sampled_from((0, 10, 250))),
    min_size=3,
    max_size=20,
).map(lambda rounds: [step for starts, ended, ms in rounds for step in (*starts, *ended, ("wait", ms))])


@examples(25)
@given(life=crowds, whole=st.integers(0, 19), rest=st.integers(1, MOST))
async def test_a_small_budget_is_overrun_by_less_than_one_request(life, whole: int, rest: int):
    """If each request can cost more than a twentieth of the budget, only the last one can overrun it: though
    some cost less and give something back, and those that are left cost all they may."""
    budget = whole * MOST + rest
    workers = Workers(budget=Budget(money_per_day=Decimal(budget) / NANO), count=3)
    bench = Bench(workers)
    await live(bench, life)
    while bench.running:
        bench.end(0)
    assert sum(r.actual[0] * 1_000 + r.actual[1] * 10_000 for r in bench.all) < budget + MOST


@examples(25)
@given(
    clients=st.lists(
        st.tuples(st.integers(0, 3000), st.integers(0, 1), st.integers(1, 60)), min_size=5, max_size=100
    ),
    rpm=st.sampled_from((5, 30, 300)),
    tpm=st.sampled_from((200, 5000)),
    flood=st.booleans(),
)
async def test_a_client_that_obeys_gets_through(clients, rpm: int, tpm: int, flood: bool):
    """At its first retry, after whole seconds, on whichever worker, whatever others do meanwhile."""
    workers = Workers(
        Limits(requests_per_minute=rpm, tokens_per_minute=tpm), key_limits=Limits(requests_per_minute=2 * rpm)
    )
    waiting: list[tuple[int, int, int, bool]] = [
        (at, i, tokens, False) for i, (at, _, tokens) in enumerate(clients)
    ]
    where = [worker for _, worker, _ in clients]
    passed = 0
    while waiting:
        waiting.sort()
        at, i, tokens, retried = waiting.pop(0)
        await workers.pass_time(max(0, at - (workers.ms - 1_795_000_000_000)))
        if flood:
            for n in range(3):
                with contextlib.suppress(FlorinError):
                    (await workers.enter(n, call(1, 1, text="flood"), again=True)).settle()
        try:
            grant = await workers.enter(
                where[i] + retried, call(tokens, 5, text=f"client {i}"), again=retried
            )
        except FlorinError as error:
            if retried:
                raise
            waiting.append((at + error.retry_after * 1000, i, tokens, True))
        else:
            passed += 1
            grant.count(tokens, 0, 5, choices=1)
            grant.settle()
    assert passed == len(clients)

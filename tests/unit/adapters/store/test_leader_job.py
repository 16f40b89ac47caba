"""A job that one worker does for all: who does it, when, and what of its failures is told."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from adapters.errors import StoreUnavailableError
from adapters.store.leader_job import LEASE_MS, LeaderJob, PassFailedError
from tests.doubles.memory_store import MemoryStore
from tests.support.waiting import until

ROLE = "export"


class Store(MemoryStore):
    """Its clock stands still, so that no lease lapses by itself. Mutable: how often somebody wanted to lead."""

    def __init__(self) -> None:
        super().__init__(clock=lambda: self.now)
        self.now, self.looks = 0, 0

    async def lead(self, role: str, owner: str, ttl_ms: int) -> int:
        self.looks += 1
        return await super().lead(role, owner, ttl_ms)

    async def looked_at(self) -> None:
        """Wait until the jobs have looked a few times more."""
        seen = self.looks
        await until(lambda: self.looks > seen + 3)


class Work:
    """Mutable: passes that were begun, and how the next ones end: an error, or the seconds until the next."""

    def __init__(self, *ends: Exception | float | None) -> None:
        self.passes = 0
        self.ends = list(ends)

    async def __call__(self) -> float | None:
        self.passes += 1
        end = self.ends.pop(0) if self.ends else None
        if isinstance(end, Exception):
            raise end
        return end


def job(
    store: MemoryStore, work: Callable[[], Awaitable[float | None]], owner: str = "w1", **options: Any
) -> LeaderJob:
    options = {"lease_ms": 30, "expected": (OSError,)} | options
    return LeaderJob(store, owner, ROLE, "The export", work, options.pop("seconds", 0.001), **options)


async def stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


async def test_one_worker_leads_and_another_takes_over_when_it_resigns():
    store, first, second = Store(), Work(), Work()
    leader = asyncio.create_task(job(store, first).run())
    await until(lambda: first.passes)
    other = asyncio.create_task(job(store, second, "w2").run())
    seen = first.passes
    await until(lambda: first.passes > seen + 3)
    assert not second.passes
    await stop(leader)
    await until(lambda: second.passes)
    await stop(other)


async def test_a_leader_that_died_is_followed_when_its_lease_lapses():
    store, work = Store(), Work()
    assert await store.lead(ROLE, "dead", LEASE_MS)
    task = asyncio.create_task(job(store, work).run())
    await store.looked_at()
    assert not work.passes
    store.now += LEASE_MS + 1
    await until(lambda: work.passes)
    await stop(task)


async def test_the_role_is_renewed_while_a_pass_lasts_and_the_pass_ends_with_the_job():
    store, ended = Store(), asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    task = asyncio.create_task(job(store, work).run())
    await store.looked_at()
    await stop(task)
    assert ended.is_set()


async def test_who_loses_the_role_is_told_and_has_nothing_to_report():
    store, work, lost = Store(), Work(OSError("full")), []

    async def note() -> None:
        lost.append(1)

    led = job(store, work, lost=note, seconds=0.001)
    task = asyncio.create_task(led.run())
    await until(lambda: work.passes)
    await store.resign(ROLE, "w1")
    assert await store.lead(ROLE, "w2", LEASE_MS)
    await until(lambda: lost)
    assert (led.failure, led.fence) == ("", None)
    await store.resign(ROLE, "w2")
    await until(lambda: led.fence)
    assert led.fence.token > 1, "whoever leads again has another proof"
    await stop(task)


async def test_without_redis_nobody_leads_and_nothing_breaks():
    store, work = Store(), Work()
    store.away = True
    task = asyncio.create_task(job(store, work).run())
    await store.looked_at()
    assert not work.passes
    store.away = False
    await until(lambda: work.passes)
    store.away = True
    await stop(task)


async def test_with_nothing_to_do_the_store_is_not_asked():
    store, work, asked = Store(), Work(), []
    task = asyncio.create_task(job(store, work, ready=lambda: bool(asked.append(1))).run())
    await until(lambda: len(asked) > 3)
    await stop(task)
    assert (store.looks, work.passes) == (1, 0), "it resigned"


async def test_the_pause_is_what_the_pass_says_and_grows_with_failures():
    times = iter(range(1000))
    away, broken, late = OSError("away"), ValueError("a defect"), PassFailedError("busy", at_least=99.0)
    work = Work(None, 7.0, away, away, away, away, late, broken, StoreUnavailableError("away"), None)
    led = job(Store(), work, seconds=10.0, longest=35.0, rest=3.0, clock=lambda: float(next(times)))
    pauses = [await led.attempt() for _ in range(10)]
    assert pauses[:2] == [10.0, 7.0]
    assert all(low <= pause <= 2 * low for pause, low in zip(pauses[2:6], (5, 10, 17.5, 17.5), strict=True))
    assert pauses[6] == 99.0
    assert 17.5 <= pauses[7] <= 35
    assert pauses[8:] == [10.0, 10.0]


async def test_it_rests_in_proportion_to_its_work_unless_it_waited_for_what_was_away():
    times = iter([0.0, 100.0] * 3)
    work = Work(None, OSError("away"), 5.0)
    led = job(Store(), work, seconds=1.0, rest=20.0, clock=lambda: next(times))
    assert [await led.attempt() for _ in range(3)] == [2000.0, 1.0, 5.0]


async def test_failures_are_logged_when_they_change_reported_and_counted(caplog):
    away, full, defect = OSError("away"), PassFailedError("The disk is full."), ValueError("a defect")
    work = Work(away, away, full, None, defect, defect, None)
    reports, counts = [], []

    async def report(failure: str) -> None:
        reports.append(failure)
        raise OSError("as everything")

    led = job(Store(), work, report=report, count=lambda role, result: counts.append((role, result)))
    with caplog.at_level(logging.WARNING, "adapters.store.leader_job"):
        for _ in range(7):
            await led.attempt()
    assert caplog.messages == [
        "The export failed: away. Retrying.",
        "The export failed: The disk is full. Retrying.",
        "The export recovered.",
        "The export failed: ValueError('a defect'). Retrying.",
        "The export recovered.",
    ]
    assert [bool(record.exc_info) for record in caplog.records] == [False, False, False, True, False]
    defects = ["ValueError('a defect')"] * 2
    assert reports == ["away", "away", "The disk is full.", "", *defects, ""]
    assert [result for _, result in counts] == ["failed"] * 3 + ["ok"] + ["failed"] * 2 + ["ok"]

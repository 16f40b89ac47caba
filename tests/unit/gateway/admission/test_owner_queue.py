"""So many at once, so many of one owner, the rest in turn; and nothing is lost when somebody gives up."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from gateway.admission.owner_queue import OwnerQueue, QueueFullError, QueueTimeoutError
from tests.support.waiting import PATIENCE_S

EMPTY = "<OwnerQueue 0 running, 0 waiting, 0 owners>"


def queue_of(**changed: float) -> OwnerQueue:
    limits = {"running": 2, "running_each": 1, "waiting_each": 3, "waiting": 100, "timeout": PATIENCE_S}
    return OwnerQueue(**(limits | changed))


class Crowd:
    """Tasks that take turns, and end them when they are told to."""

    def __init__(self, queue: OwnerQueue) -> None:
        self.queue = queue
        self.began: list[str] = []
        self.ends: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def come(self, *names: str) -> None:
        for name in names:
            self.ends[name] = asyncio.Event()
            self.tasks[name] = asyncio.create_task(self._one(name))
            await asyncio.sleep(0)

    async def _one(self, name: str) -> None:
        async with self.queue.acquire(name[0]):
            self.began.append(name)
            await self.ends[name].wait()

    async def end(self, *names: str) -> None:
        for name in names:
            self.ends[name].set()
            await self.tasks[name]
            await asyncio.sleep(0)


async def test_owners_take_turns_however_many_each_has_waiting():
    crowd = Crowd(queue_of(running=1))
    await crowd.come("a1", "a2", "a3", "a4", "b1", "c1")
    assert crowd.began == ["a1"]
    order = ["a1", "b1", "c1", "a2", "a3", "a4"]
    await crowd.end(*order)
    assert crowd.began == order
    assert repr(crowd.queue) == EMPTY


async def test_one_owner_runs_no_more_than_its_own_and_leaves_the_rest_to_others():
    crowd = Crowd(queue_of(running=3, running_each=2))
    await crowd.come("a1", "a2", "a3", "b1")
    assert crowd.began == ["a1", "a2", "b1"]
    await crowd.end("b1")
    assert crowd.began == ["a1", "a2", "b1"]
    await crowd.end("a1")
    assert crowd.began[-1] == "a3"
    await crowd.end("a2", "a3")
    assert repr(crowd.queue) == EMPTY


async def test_what_waits_is_bounded_by_owner_and_in_all():
    crowd = Crowd(queue_of(running=1, waiting_each=2, waiting=3))
    await crowd.come("a1", "a2", "a3")
    with pytest.raises(QueueFullError):
        async with crowd.queue.acquire("a"):
            pytest.fail("it ran")
    await crowd.come("b1")
    with pytest.raises(QueueTimeoutError):
        async with crowd.queue.acquire("c"):
            pytest.fail("it ran")
    for _ in range(4):
        await crowd.end(crowd.began[-1])
    assert repr(crowd.queue) == EMPTY


async def test_who_waits_too_long_is_told_so():
    crowd = Crowd(queue_of(running=1, timeout=0.01))
    await crowd.come("a1")
    with pytest.raises(QueueTimeoutError):
        async with crowd.queue.acquire("b"):
            pytest.fail("it ran")
    await crowd.end("a1")
    assert repr(crowd.queue) == EMPTY


async def test_a_turn_ends_once_however_often_it_is_ended():
    made = queue_of(running=2)
    async with made.acquire("a") as first, made.acquire("b"):
        first.release()
        first.release()
        assert (made.running, made.waiting) == (1, 0)
    assert repr(made) == EMPTY


async def test_a_turn_that_comes_in_the_moment_of_giving_up_goes_to_the_next():
    crowd = Crowd(queue_of(running=1))
    await crowd.come("a1", "b1", "c1")
    crowd.ends["a1"].set()
    crowd.tasks["b1"].cancel()  # before a1 has ended
    await asyncio.wait([crowd.tasks["a1"], crowd.tasks["b1"]])
    await asyncio.sleep(0)
    assert crowd.began == ["a1", "c1"]
    await crowd.come("b2")
    crowd.queue._release("c")  # c1's turn ends and b2 gets it, and gives up before it hears of it
    crowd.tasks["b2"].cancel()
    await asyncio.wait([crowd.tasks["b2"]])
    assert crowd.queue.running == 0
    async with crowd.queue.acquire("d"):
        pass
    crowd.tasks["c1"].cancel()


@pytest.mark.parametrize("seed", range(20))
async def test_whatever_ends_and_gives_up_the_limits_hold_and_nothing_is_lost(seed: int):
    chance = random.Random(seed)
    made = queue_of(running=3, running_each=2, waiting_each=4, waiting=8)
    running: Counter[str] = Counter()

    async def one(owner: str) -> None:
        async with made.acquire(owner) as permit:
            running[owner] += 1
            assert running.total() <= 3
            assert running[owner] <= 2
            try:
                for _ in range(chance.randrange(4)):
                    await asyncio.sleep(0)
            finally:
                running[owner] -= 1
            if chance.random() < 0.3:
                permit.release()
                await asyncio.sleep(0)

    tasks = []
    for _ in range(200):
        tasks.append(asyncio.create_task(one(chance.choice("abc"))))
        if chance.random() < 0.5:
            await asyncio.sleep(0)
        if chance.random() < 0.4:
            chance.choice(tasks).cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    unexpected = [r for r in results if r is not None and not isinstance(r, (
        QueueFullError, QueueTimeoutError, asyncio.CancelledError))]  # fmt: skip
    assert unexpected == []
    assert repr(made) == EMPTY

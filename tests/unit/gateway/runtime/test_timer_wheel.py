from __future__ import annotations

import asyncio

import pytest

from gateway.runtime.timer_wheel import TimerWheel
from tests.support.waiting import until

WIDTH = 0.02


@pytest.fixture
async def world():
    rung: list[str] = []
    wheel = TimerWheel(rung.append, WIDTH)
    yield wheel, rung
    wheel.close()


async def test_items_go_off_in_the_order_of_their_times_and_not_early(world):
    wheel, rung = world
    loop = asyncio.get_running_loop()
    begun = loop.time()
    wheel.put("late", 10 * WIDTH)
    wheel.put("soon", 2 * WIDTH)
    await until(lambda: len(rung) == 2)
    assert rung == ["soon", "late"]
    assert loop.time() - begun >= 9 * WIDTH


async def test_an_item_goes_off_at_the_last_time_that_it_was_given(world):
    wheel, rung = world
    wheel.put("moved", 0.0)
    wheel.put("moved", 60.0)
    wheel.put("other", 2 * WIDTH)
    await until(lambda: rung)
    assert rung == ["other"]
    wheel.put("moved", 0.0)
    await until(lambda: len(rung) == 2)
    assert rung == ["other", "moved"]


async def test_a_removed_item_and_a_closed_wheel_are_silent(world):
    wheel, rung = world
    wheel.put("removed", WIDTH)
    wheel.remove("removed")
    wheel.put("kept", 2 * WIDTH)
    await until(lambda: rung)
    wheel.put("closed", WIDTH)
    wheel.close()
    await asyncio.sleep(3 * WIDTH)
    assert rung == ["kept"]


async def test_an_item_may_put_itself_back(world):
    _, rung = world
    wheel: TimerWheel[str]

    def ring(item: str) -> None:
        rung.append(item)
        wheel.put(item, 0.0)

    wheel = TimerWheel(ring, WIDTH)
    wheel.put("again", 0.0)
    await until(lambda: len(rung) >= 3)
    wheel.close()

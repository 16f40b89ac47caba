import asyncio
import time

import pytest

from gateway.admission.overload import (
    LATE_SECONDS,
    WINDOW_SECONDS,
    EngineLoad,
    LoopWatch,
    Pace,
    expected_wait,
)


@pytest.mark.parametrize(
    ("load", "expected"),
    [
        (EngineLoad(own=40, all=40, runs=10, pace=5.0), 6.0),
        (EngineLoad(own=20, all=40, runs=10, pace=2.5), 6.0),  # of two workers, each sees half the pace
        (EngineLoad(own=1, all=40, runs=10, pace=0.125), 6.0),
        (EngineLoad(own=10, all=10, runs=10, pace=5.0), 0.0),
        (EngineLoad(own=4, all=4, runs=10, pace=5.0), 0.0),
        # the engine says that nothing waits; nothing has ended yet; nothing of ours is there
        (EngineLoad(own=400, all=400, runs=0, pace=5.0), 0.0),
        (EngineLoad(own=400, all=400, runs=10, pace=0.0), 0.0),
        (EngineLoad(own=0, all=400, runs=10, pace=5.0), 0.0),
    ],
)
def test_how_long_one_more_would_wait(load, expected):
    assert expected_wait(load) == pytest.approx(expected)


def test_the_pace_is_of_the_latest_answers():
    pace = Pace()
    assert pace.at(0.0) == 0.0
    for second in range(100):
        for _ in range(5):
            pace.note(second + 0.5)
    assert pace.at(100.0) == pytest.approx(5.0, rel=0.05)
    assert pace.at(100.0 + WINDOW_SECONDS) == 0.0


def test_a_worker_is_overloaded_while_its_loop_is_late_again_and_again():
    watch = LoopWatch()
    for late, busy, expected in (
        (0.0, 0.01, False),
        (1.0, 0.9, False),
        (1.0, 0.9, True),
        (1.0, 0.01, False),  # others kept it from the processor
        (1.0, 0.9, False),
        (0.1, 0.15, False),
    ):
        watch.note(late, busy)
        assert watch.overloaded is expected


async def test_the_loops_own_work_is_what_counts():
    watch = LoopWatch()
    task = asyncio.create_task(watch.run())
    await asyncio.sleep(0)
    for _ in range(3):
        time.sleep(LATE_SECONDS + 0.05)  # noqa: ASYNC251  # kept from the processor
        await asyncio.sleep(0.001)
        assert not watch.overloaded
    for _ in range(3):
        end = time.thread_time() + LATE_SECONDS + 0.05
        while time.thread_time() < end:
            pass
        await asyncio.sleep(0.001)
    assert watch.overloaded
    task.cancel()
    await asyncio.wait([task])

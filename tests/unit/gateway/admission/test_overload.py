import asyncio
import time

import pytest

from gateway.admission.overload import (
    BURST,
    CALM,
    LATE_SECONDS,
    MOST_BEGUN,
    TICK_SECONDS,
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


LATE, ON_TIME, STOLEN = (0.2, 0.2), (0.0, 0.01), (0.2, 0.01)


def overloaded() -> LoopWatch:
    watch = LoopWatch()
    for _ in range(BURST + 1):
        watch.note(*LATE)
    assert watch.overloaded
    return watch


def test_a_loop_that_is_late_again_and_again_is_overloaded():
    watch = LoopWatch()
    for tick in [*[LATE] * BURST, ON_TIME, *[LATE] * BURST, STOLEN, *[LATE] * BURST]:
        watch.note(*tick)
        assert not watch.overloaded
    watch.note(*LATE)
    assert watch.overloaded


def test_an_overload_is_over_when_nothing_has_been_refused_for_a_while():
    watch = overloaded()
    begun = [watch.begin() for _ in range(MOST_BEGUN)]
    assert None not in begun
    for _ in range(CALM):
        watch.note(*ON_TIME)
    assert watch.begin() is None
    for _ in range(CALM + 1):
        watch.note(*ON_TIME)
        assert watch.overloaded
    watch.note(*ON_TIME)
    assert not watch.overloaded
    assert watch.begin() is not None


def test_who_comes_while_so_many_have_begun_is_refused():
    watch = LoopWatch()
    early = [watch.begin() for _ in range(MOST_BEGUN + 10)]
    assert None not in early
    for _ in range(BURST + 1):
        watch.note(*LATE)
    assert watch.begin() is None
    for beginning in early[:10]:
        beginning.end()
        beginning.end()
    assert watch.begin() is None
    early[10].pause()  # it waits for its client
    last = watch.begin()
    assert last is not None
    early[10].resume()  # whoever has been taken stays
    assert watch.begun == MOST_BEGUN + 1
    for beginning in [*early, last]:
        beginning.end()
    assert watch.begun == 0


@pytest.mark.parametrize(("refused", "seconds"), [(0, 1), (1, 2), (2, 3), (3, 4), (1000, 20)])
def test_retry_after_follows_from_the_share_that_is_refused(refused, seconds):
    watch = overloaded()
    for _ in range(200):
        watch.begin().end()
        held = [watch.begin() for _ in range(MOST_BEGUN)]
        assert [watch.begin() for _ in range(refused * (MOST_BEGUN + 1))].count(None) == refused * (
            MOST_BEGUN + 1
        )
        for beginning in held:
            beginning.end()
        watch.note(*ON_TIME)
        watch.overloaded = True
    assert watch.retry_after == seconds


async def test_the_loops_own_work_is_what_counts():
    watch = LoopWatch()
    task = asyncio.create_task(watch.run())
    await asyncio.sleep(0)
    for _ in range(BURST + 2):
        time.sleep(LATE_SECONDS * 2 + TICK_SECONDS)  # noqa: ASYNC251  # kept from the processor
        await asyncio.sleep(0.001)
        assert not watch.overloaded
    for _ in range(BURST + 2):
        end = time.thread_time() + LATE_SECONDS * 2 + TICK_SECONDS
        while time.thread_time() < end:
            pass
        await asyncio.sleep(0.001)
    assert watch.overloaded
    task.cancel()
    await asyncio.wait([task])

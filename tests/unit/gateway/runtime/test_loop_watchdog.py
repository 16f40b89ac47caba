"""Who held the event loop."""

from __future__ import annotations

import asyncio
import sys
from types import FrameType

import pytest

from gateway.runtime import loop_watchdog
from gateway.runtime.loop_watchdog import Beat, LoopWatchdog, describe, is_blocked
from tests.support.waiting import until_now


@pytest.mark.parametrize(
    ("late", "processor", "looked_before", "blocked"),
    [
        (0.9, 0.9, 0.25, False),
        (1.1, 1.1, 0.25, True),  # it computes
        (1.1, 0.0, 0.25, True),  # it waits, as for a disk
        (9.0, 8.0, 9.25, True),  # it computes in one call, so that the thread could not look
        (9.0, 0.1, 9.25, False),  # the whole process was stopped
    ],
)
def test_a_loop_that_stands_still_is_told_from_a_process_that_does(
    monkeypatch: pytest.MonkeyPatch, late, processor, looked_before, blocked
):
    monkeypatch.setattr(loop_watchdog, "BLOCKED_SECONDS", 1.0)  # other tests' gateways are never blocked
    last, now = Beat(100.0, 5.0), Beat(100.25 + late, 5.0 + processor)
    assert is_blocked(last, now, now.at - looked_before) is blocked


async def test_a_loop_that_stands_still_is_reported(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(loop_watchdog, "BLOCKED_SECONDS", 0.05)
    monkeypatch.setattr(loop_watchdog, "BEAT_SECONDS", 0.01)
    causes: list[str] = []
    watchdog = LoopWatchdog(causes.append)
    task = asyncio.create_task(watchdog.run())
    await asyncio.sleep(0)
    until_now(lambda: causes)  # in the loop, which therefore stands still
    task.cancel()
    await asyncio.wait([task])
    assert [condition.code for condition in watchdog.conditions()] == ["loop_blocked"]


def test_the_innermost_function_of_florins_own_is_named():
    frames: list[FrameType] = []

    def clock() -> float:  # a library's function, called by one of ours
        frames.append(sys._getframe())
        return 1.0

    LoopWatchdog(lambda _: None, clock=clock)
    cause, stack = describe(frames[0])
    assert cause == "gateway.runtime.loop_watchdog.LoopWatchdog.__init__"
    assert stack.index("test_loop_watchdog.py") < stack.index("gateway/runtime/loop_watchdog.py")
    assert describe(None) == ("unknown", "")

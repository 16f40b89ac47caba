"""A process for one call: what comes back, and that it ends whatever happens."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import psutil
import pytest

from adapters.child_process import UnfinishedError, call
from adapters.errors import Finding, RejectedError
from adapters.progress import Progress, silent
from tests.support.waiting import PATIENCE_S, until_now

MEMORY = 256 * 1024 * 1024
REFUSAL = RejectedError("acme/support", (Finding("header_invalid", "It is not.", "x", "y"),))


def niceness(*, progress: Progress) -> int:
    progress("check", 1, 2)
    progress("check", 2, 2)
    return os.nice(0)


def refuse(*, progress: Progress) -> None:
    raise REFUSAL


def hoard(*, progress: Progress) -> int:
    return len(bytearray(2 * MEMORY))


def end_itself(*, progress: Progress) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stay(*, progress: Progress) -> None:
    progress("pid", os.getpid(), None)
    while True:
        time.sleep(60)


def run(work: Callable[..., Any], *, seconds: float = PATIENCE_S, progress: Progress = silent) -> Any:
    return call(work, "check", seconds=seconds, memory=MEMORY, progress=progress)


def test_the_result_and_the_progress_come_from_a_process_of_lower_priority():
    steps = []
    assert run(niceness, progress=lambda *step: steps.append(step)) == min(os.nice(0) + 10, 19)
    assert list(dict.fromkeys(steps)) in (
        [("check", 0, None), ("check", 1, 2), ("check", 2, 2)],  # it was asked once before it began
        [("check", 1, 2), ("check", 2, 2)],
    )


def test_what_the_function_raises_is_raised():
    with pytest.raises(RejectedError) as caught:
        run(refuse)
    assert (caught.value.findings, str(caught.value)) == (REFUSAL.findings, str(REFUSAL))


@pytest.mark.parametrize(("work", "limit"), [(hoard, "256 MiB of memory"), (end_itself, "died")])
def test_neither_memory_nor_the_process_itself_takes_the_caller_down(work, limit):
    with pytest.raises(UnfinishedError, match=limit):
        run(work)


def test_after_the_deadline_it_ends():
    steps = []
    with pytest.raises(UnfinishedError, match="more than 1 seconds"):
        run(stay, seconds=1, progress=lambda *step: steps.append(step))
    for pid in {pid for step, pid, _ in steps if step == "pid"}:  # it may not have come so far
        until_now(lambda pid=pid: not psutil.pid_exists(pid))


def test_it_ends_when_nobody_waits_any_more():
    class LeftError(Exception):
        pass

    steps = []

    def leave(*step: Any) -> None:
        steps.append(step)
        if step[0] == "pid" and steps.count(step) == 3:  # the function says it once
            raise LeftError

    with pytest.raises(LeftError):
        run(stay, progress=leave)
    until_now(lambda: not psutil.pid_exists(steps[-1][1]))

"""Stops each test once, with all its processes, for ten seconds, as a busy machine may at any line:

    python -m pytest -p tests.tools.stops tests/integration/test_limits.py

`FLORIN_TEST_STOPS_WITHIN` (2.0): the stop comes within so many seconds of a test's beginning, if it lasts as long.
`FLORIN_TEST_STOPS_SEED`: another number stops at other lines. What fails, and passes without, depends on time.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from select import select
from time import sleep

import psutil
import pytest

STOP_SECONDS = 10.0


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    within = float(os.environ.get("FLORIN_TEST_STOPS_WITHIN", "2.0"))
    after = random.Random(f"{item.nodeid} {os.environ.get('FLORIN_TEST_STOPS_SEED')}").uniform(0, within)
    command = [sys.executable, "-m", __name__, str(os.getpid()), str(after)]
    # In a session of its own: whoever ends the tests must not leave processes that are stopped.
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as stopper:
        try:
            return (yield)
        finally:
            assert stopper.stdin is not None
            stopper.stdin.close()


def stop(pid: int, after: float) -> None:
    """Stop that process with all its descendants but this one, unless standard input is closed before."""
    if select([sys.stdin], [], [], after)[0]:
        return
    family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    family = [process for process in family if process.pid != os.getpid() and not _is_stopped(process)]
    for number in (signal.SIGSTOP, signal.SIGCONT):
        for process in family:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)
        if number is signal.SIGSTOP:
            sleep(STOP_SECONDS)


def _is_stopped(process: psutil.Process) -> bool:
    """By its test, which it would be continued against; or it has ended."""
    try:
        return bool(process.status() == psutil.STATUS_STOPPED)
    except psutil.NoSuchProcess:
        return True


if __name__ == "__main__":
    stop(int(sys.argv[1]), float(sys.argv[2]))

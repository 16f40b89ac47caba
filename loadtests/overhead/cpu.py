"""CPU time of processes from /proc, and CPU affinity."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

_TICK = 1 / os.sysconf("SC_CLK_TCK")


def seconds(pid: int) -> float:
    """User and system time of all threads of `pid` in seconds, with 10 ms resolution; 0.0 once it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0.0
    fields = stat.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * _TICK


def total(pids: Iterable[int]) -> float:
    return sum(seconds(pid) for pid in pids)


def tree(root: int) -> list[int]:
    """`root` and all its living descendants."""
    found = [root]
    for pid in found:
        for task in Path(f"/proc/{pid}/task").glob("*/children"):
            found += [int(child) for child in task.read_text().split()]
    return found


def name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


@contextmanager
def on_core(core: int) -> Iterator[None]:
    """Pin everything started inside to `core`, including children and threads."""
    before = os.sched_getaffinity(0)
    wanted = sorted(before)[core % len(before)]
    os.sched_setaffinity(0, {wanted})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)

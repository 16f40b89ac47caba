"""CPU time and memory of processes from /proc, and CPU affinity."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
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


def everything() -> float:
    """The same for all processes of the machine together, and their children that have ended, with the time
    that the hypervisor gave to other machines."""
    ticks = int(Path("/proc/stat").read_text().split(maxsplit=9)[8])
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended since
            ticks += sum(map(int, stat.read_text().rpartition(")")[2].split()[11:15]))
    return ticks * _TICK


def total(pids: Iterable[int]) -> float:
    return sum(seconds(pid) for pid in pids)


def memory(pid: int) -> int:
    """Bytes of anonymous resident memory; 0 once it is gone. Files that are mapped do not count."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return int(status.partition("RssAnon:")[2].split()[0]) * 1024


def tree(root: int) -> list[int]:
    """`root` and all its living descendants."""
    pids = [root]
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").glob("*/children"):
            pids += [int(child) for child in task.read_text().split()]
    return pids


def name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def move(pids: Iterable[int], core: int) -> None:
    """Pin all threads of these processes to `core`."""
    cores = sorted(os.sched_getaffinity(0))
    for pid in pids:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            os.sched_setaffinity(int(thread.name), {cores[core % len(cores)]})


def machine() -> dict[str, str]:
    """What figures depend on."""
    model = Path("/proc/cpuinfo").read_text().partition("model name")[2].splitlines()[:1]
    return {
        "processor": "".join(model).lstrip("\t: "),
        "processors": str(os.cpu_count()),
        "system": platform.platform(),
        "python": platform.python_version(),
    }


@contextmanager
def on_core(core: int) -> Iterator[None]:
    """Pin everything started inside to `core`, including children and threads."""
    before = os.sched_getaffinity(0)
    chosen = sorted(before)[core % len(before)]
    os.sched_setaffinity(0, {chosen})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)

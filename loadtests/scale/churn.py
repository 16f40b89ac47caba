"""Changes the registry at a steady rate, in a process of its own.

On stdin: a Job as JSON, and its end as the signal to stop. On stdout: the number of changes per second.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import uvloop
from pydantic import TypeAdapter

from adapters.store.redis import RedisStore
from loadtests.overhead import cpu
from loadtests.scale.gateway import BENCH_CORE
from loadtests.scale.registry import Registry, changes

PACE = 0.005
"""Seconds between two looks at how many changes are due."""


@dataclass(frozen=True, slots=True)
class Job:
    url: str
    rate: float
    """Documents changed per second."""
    registry: Registry
    prefix: str = "florin"
    """Another one for changes that no gateway follows."""


@contextmanager
def changing(url: str, registry: Registry, rate: float, prefix: str = "florin") -> Iterator[list[float]]:
    """Changes the registry meanwhile; the list has the rate that was reached afterwards."""
    job = Job(url, rate, registry, prefix)
    reached: list[float] = []
    command = [sys.executable, "-m", "loadtests.scale.churn"]
    with cpu.on_core(BENCH_CORE):
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin
    process.stdin.write(TypeAdapter(Job).dump_json(job) + b"\n")
    process.stdin.flush()
    try:
        time.sleep(1)
        yield reached
    finally:
        output, _ = process.communicate()
        reached.append(float(output or 0))


async def run(job: Job) -> float:
    """Returns the rate that was reached."""
    store = RedisStore(job.url, prefix=job.prefix)
    stop = asyncio.ensure_future(asyncio.to_thread(sys.stdin.buffer.read))
    begun, changed, under_way = time.perf_counter(), 0, set[asyncio.Task[int]]()
    for commit in changes(job.registry):
        while changed >= (time.perf_counter() - begun) * job.rate or len(under_way) >= 24:
            if stop.done():
                break
            await asyncio.sleep(PACE)
        if stop.done():
            break
        task = asyncio.create_task(store.commit(commit))
        under_way.add(task)
        task.add_done_callback(under_way.discard)
        changed += len(commit)
    await asyncio.gather(*under_way)
    rate = changed / (time.perf_counter() - begun)
    await store.close()
    return rate


def main() -> None:
    line = sys.stdin.buffer.readline()
    job = TypeAdapter(Job).validate_json(line)
    print(uvloop.run(run(job)))


if __name__ == "__main__":
    main()

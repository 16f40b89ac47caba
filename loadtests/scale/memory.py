"""The memory that one snapshot of the registry takes, counted by tracemalloc in a process of its own."""

from __future__ import annotations

import asyncio
import gc
import sys
import tracemalloc
from dataclasses import asdict, dataclass

import orjson

from adapters.placement.residency import Residency
from adapters.registry.catalog import Catalog
from adapters.store.continuity import Position
from adapters.store.feed import Follower
from adapters.store.redis import RedisStore
from gateway.tenants.directory import Directory


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes."""

    held: int
    """Documents and the views made from them."""
    peak: int
    """The same, while they are loaded."""


async def measure(url: str) -> Memory:
    store = RedisStore(url)
    await store.inspect(Position())  # connects, so that connections are not counted
    gc.collect()
    tracemalloc.start()
    follower = Follower(store, [Directory(), Catalog(), Residency()])
    await follower.start()
    gc.collect()
    current, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    await follower.close()
    await store.close()
    return Memory(current, peak)


if __name__ == "__main__":
    sys.stdout.buffer.write(orjson.dumps(asdict(asyncio.run(measure(sys.argv[1])))))

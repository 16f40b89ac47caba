"""Samples memory, descriptors and threads of each process, Redis, files, and the ledger."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import Counter
from pathlib import Path
from typing import Any, Final

import psutil
import redis
from sqlalchemy import Engine, text

from loadtests.chaos.world import ChaosCluster, GatewayHost

MIB: Final = 2**20

ALLOWED: Final[dict[str, float | None]] = {
    "memory MiB": 8.0,
    "own memory MiB": 8.0,
    "descriptors": 8.0,
    "threads": 3.0,
    "Redis keys": 8.0,
    "Redis MiB": 1.0,
    "feed events": None,
    "audit entries": None,
    "files": 12.0,
    "state MiB": 4.0,
    "artifacts": None,
    "ledger rows": None,
    "ledger MiB": None,
}
"""Suffix of a series' name → growth allowed from the end of the warm-up to the end of the run. None if it
grows by design: up to its own bound (feed, audit), for an hour (artifacts of retired versions), or with every
request (ledger)."""


def allowed(name: str) -> float | None:
    return next(limit for end, limit in ALLOWED.items() if name.endswith(end))


async def sample(world: ChaosCluster, ledger: Engine) -> dict[str, float]:
    """Series → value. Values that are unavailable now are left out."""
    parts = await asyncio.gather(
        *(asyncio.to_thread(part) for part in (
            lambda: _processes(world), lambda: _redis(world), lambda: _files(world), lambda: _ledger(ledger)
        ))
    )  # fmt: skip
    return {name: value for part in parts for name, value in part.items()}


def _processes(world: ChaosCluster) -> dict[str, float]:
    samples: dict[str, float] = {}
    for house in world.houses:
        if house.gateway is None:
            continue
        members = [("supervisor", psutil.Process(house.gateway.pid))]
        members += [(f"worker {number}", process) for number, process in enumerate(house.crew())]
        for who, process in members:
            with contextlib.suppress(psutil.NoSuchProcess):
                samples |= _process(who, process)
    return samples


def _process(who: str, process: psutil.Process) -> dict[str, float]:
    memory = process.memory_full_info()
    return {
        f"{who} memory MiB": memory.rss / MIB,
        f"{who} own memory MiB": memory.uss / MIB,
        f"{who} descriptors": process.num_fds(),
        f"{who} threads": process.num_threads(),
    }


def _redis(world: ChaosCluster) -> dict[str, float]:
    client = world.valkeys.primary.client
    try:
        info: Any = client.info("memory")
        return {
            "Redis keys": _number(client.dbsize()),
            "Redis MiB": info["used_memory_dataset"] / MIB,
            "feed events": _number(client.xlen("{florin}:feed")),
            "audit entries": _number(client.xlen("{florin}:audit")),
        }
    except redis.RedisError:
        return {}


def _number(reply: Any) -> float:
    return float(reply)


def _files(world: ChaosCluster) -> dict[str, float]:
    sizes = [size for house in world.houses for size in _sizes(house)]
    artifacts = sum(1 for entry in (world.directory / "artifacts").rglob("*") if entry.is_dir())
    return {"files": len(sizes), "state MiB": sum(sizes) / MIB, "artifacts": artifacts}


def _sizes(house: GatewayHost) -> list[int]:
    """Disk usage of all files in the state directory, some of which are sparse. Excludes the usage log, whose
    segments come and go in large steps."""
    sizes = []
    for directory, _, names in os.walk(house.disk.path):
        if "usage" in Path(directory).relative_to(house.disk.path).parts:
            continue
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                sizes.append((Path(directory) / name).stat().st_blocks * 512)
    return sizes


def _ledger(engine: Engine) -> dict[str, float]:
    with engine.connect() as connection:
        rows = connection.execute(text("SELECT count(*) FROM usage_records")).scalar_one()
        size = connection.execute(text("SELECT pg_database_size(current_database())")).scalar_one()
    return {"ledger rows": float(rows), "ledger MiB": size / MIB}


def largest_keys(world: ChaosCluster, most: int = 8) -> list[tuple[str, int]]:
    """Redis keys by memory in bytes, largest first; engines' keys are combined."""
    client = world.valkeys.primary.client
    sizes: Counter[str] = Counter()
    for key in client.scan_iter(count=1000):
        size: Any = client.memory_usage(key, samples=0)
        sizes[key] += size or 0
    return sizes.most_common(most)

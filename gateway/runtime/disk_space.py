"""Monitors free disk space in the directories of this installation."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gateway.observability.conditions import Condition
from gateway.observability.metrics import Metrics

LOOK_SECONDS: Final = 5.0
LOW_SHARE: Final = 0.1
LOW_BYTES: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class DiskUsage:
    free: int
    size: int
    """In bytes. `free` excludes space reserved for root."""

    @property
    def low(self) -> bool:
        """Low in proportion and in absolute terms: a tenth of a large disk is plenty."""
        return self.free < min(LOW_SHARE * self.size, LOW_BYTES)


def disk_usage(path: Path) -> DiskUsage:
    """Usage of a directory's file system; the directory need not exist yet. Blocks. Raises OSError."""
    while not path.exists() and path != path.parent:
        path = path.parent
    stat = os.statvfs(path)
    return DiskUsage(stat.f_bavail * stat.f_frsize, stat.f_blocks * stat.f_frsize)


class DiskSpace:
    """Mutable: the latest measurements."""

    def __init__(self, directories: Mapping[str, Path], metrics: Metrics) -> None:
        """`directories`: by label, for example `state`."""
        self._directories = directories
        self._metrics = metrics
        self._usage: dict[str, DiskUsage] = {}

    def __repr__(self) -> str:
        return f"<DiskSpace {self._usage}>"

    async def run(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        for name, path in self._directories.items():
            try:
                usage = await asyncio.to_thread(disk_usage, path)
            except OSError:  # an unavailable network disk is reported where it is used
                self._usage.pop(name, None)
                continue
            self._usage[name] = usage
            self._metrics.disk(name, free=usage.free, size=usage.size)

    def conditions(self) -> Iterable[Condition]:
        for name, usage in self._usage.items():
            if usage.low:
                free = f"{usage.free / (1 << 20):,.0f} MiB of {usage.size / (1 << 20):,.0f} MiB"
                yield Condition("disk_low", name, f"{free} free in {self._directories[name]}.")

"""How much room there is where this installation keeps its files, before there is none."""

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
class DiskRoom:
    free: int
    size: int
    """Bytes, those that only root may use left out of `free`."""

    @property
    def low(self) -> bool:
        """Little in proportion, and little: a tenth of a large disk is plenty."""
        return self.free < min(LOW_SHARE * self.size, LOW_BYTES)


def room(path: Path) -> DiskRoom:
    """On the file system of a directory, which need not be there yet. Blocks. Raises OSError."""
    while not path.exists() and path != path.parent:
        path = path.parent
    found = os.statvfs(path)
    return DiskRoom(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize)


class DiskSpace:
    """Mutable: what was found last."""

    def __init__(self, directories: Mapping[str, Path], metrics: Metrics) -> None:
        """`directories`: a label of each, `state`, …"""
        self._directories = directories
        self._metrics = metrics
        self._found: dict[str, DiskRoom] = {}

    def __repr__(self) -> str:
        return f"<DiskSpace {self._found}>"

    async def run(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        for name, path in self._directories.items():
            try:
                found = await asyncio.to_thread(room, path)
            except OSError:  # a network disk that is away says so where it is used
                self._found.pop(name, None)
                continue
            self._found[name] = found
            self._metrics.disk(name, free=found.free, size=found.size)

    def conditions(self) -> Iterable[Condition]:
        for name, found in self._found.items():
            if found.low:
                free = f"{found.free / (1 << 20):,.0f} MiB of {found.size / (1 << 20):,.0f} MiB"
                yield Condition("disk_low", name, f"{free} are free in {self._directories[name]}.")

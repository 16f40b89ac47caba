"""What the GPU draws, by NVML, and what it is."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import pynvml

INTERVAL = 0.1
"""Seconds between two samples; NVML's own average is over about as long."""


def describe() -> dict[str, Any]:
    """The first GPU's name, memory, driver and power limit. Empty without one."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return {}
    try:
        gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
        return {
            "gpu": _text(pynvml.nvmlDeviceGetName(gpu)),
            "driver": _text(pynvml.nvmlSystemGetDriverVersion()),
            "memory_bytes": int(pynvml.nvmlDeviceGetMemoryInfo(gpu).total),
            "limit_watts": pynvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1000,
        }
    finally:
        pynvml.nvmlShutdown()


@dataclass
class Meter:
    """`async with Meter() as meter`: samples meanwhile, in watts and bytes. Mutable. Empty without a GPU."""

    watts: list[float] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)
    _task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError:
            return self
        self._task = asyncio.create_task(self._sample(pynvml.nvmlDeviceGetHandleByIndex(0)))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            pynvml.nvmlShutdown()

    async def _sample(self, gpu: Any) -> None:
        while True:
            self.watts.append(pynvml.nvmlDeviceGetPowerUsage(gpu) / 1000)
            self.memory.append(int(pynvml.nvmlDeviceGetMemoryInfo(gpu).used))
            await asyncio.sleep(INTERVAL)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)

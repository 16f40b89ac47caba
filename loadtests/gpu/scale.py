"""How much is measured: on a GPU, and in the dry run on the CPU engine. Nothing else differs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from loadtests.gpu.shapes import LLAMA_8B, TINY, Shape


@dataclass(frozen=True, slots=True)
class Scale:
    shape: Shape
    slots: int
    cpu_slots: int
    seats: int
    """Most sequences in a batch."""
    max_length: int
    ranks: tuple[int, ...]
    """The last is the engine's maximum."""
    batches: tuple[int, ...]
    distinct: tuple[int, ...]
    """Numbers of adapters in a batch."""
    cliff: tuple[int, ...]
    """Numbers of adapters in flight, below and above the slots."""
    rounds: int
    """Repetitions of whatever takes long."""
    repeats: int
    """Repetitions of whatever is over soon."""
    tokens: int
    """Length of an answer."""
    seconds: float
    """For each measurement that lasts a given time."""
    flags: tuple[str, ...]
    """The engine's flags besides those that follow from the above."""


H100: Final = Scale(
    shape=LLAMA_8B,
    slots=16,
    cpu_slots=64,
    seats=128,
    max_length=2048,
    ranks=(8, 16, 32, 64),
    batches=(1, 2, 4, 8, 16, 32, 64, 128),
    distinct=(0, 1, 2, 4, 8, 16),
    cliff=(4, 8, 16, 17, 20, 24, 32, 48),
    rounds=2,
    repeats=8,
    tokens=48,
    seconds=1.0,
    flags=("--dtype", "bfloat16", "--gpu-memory-utilization", "0.85"),
)
CPU: Final = Scale(
    shape=TINY,
    slots=2,
    cpu_slots=8,
    seats=8,
    max_length=256,
    ranks=(2, 4, 8),
    batches=(1, 4),
    distinct=(0, 1, 2),
    cliff=(2, 3),
    rounds=1,
    repeats=2,
    tokens=6,
    seconds=0.1,
    flags=("--dtype", "float32", "--block-size", "32", "--kv-cache-memory-bytes", "67108864"),
)

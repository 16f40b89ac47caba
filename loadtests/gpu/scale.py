"""How much is measured: on a GPU, and in the dry run on the CPU engine. Nothing else differs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from loadtests.gpu.shapes import LLAMA_8B, TINY, Shape

Mode = Literal["compiled", "graphs", "eager"]
"""As vLLM starts by default, but for few sizes of CUDA graphs; graphs of decode steps without compilation; or
neither."""
BATCHES: Final = (1, 2, 4, 8, 16, 32, 64, 128)


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
    modes: Mapping[Mode, tuple[str, ...]]
    """How the engine is started, by preference."""
    calibrated_length: int
    """Longest prompt and answer with which `calibrate` plans its loads."""
    prompts: tuple[int, ...]
    """Lengths of prompts."""


def _compilation(**options: int | str) -> str:
    return json.dumps({"cudagraph_capture_sizes": BATCHES, **options})


GPU: Final = Scale(
    shape=LLAMA_8B,
    slots=16,
    cpu_slots=64,
    seats=128,
    max_length=2048,
    ranks=(8, 16, 32, 64),
    batches=BATCHES,
    distinct=(0, 1, 2, 4, 8, 16),
    cliff=(8, 16, 17, 20, 32, 48),
    rounds=2,
    repeats=8,
    tokens=48,
    seconds=1.0,
    flags=("--dtype", "bfloat16", "--gpu-memory-utilization", "0.85"),
    modes={
        "compiled": ("--compilation-config", _compilation()),
        "graphs": ("--compilation-config", _compilation(mode=0, cudagraph_mode="FULL_DECODE_ONLY")),
        "eager": ("--enforce-eager",),
    },
    calibrated_length=1024,
    prompts=(128, 512, 1024, 2000),
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
    modes={"compiled": (), "eager": ("--enforce-eager",)},
    calibrated_length=256,
    prompts=(16, 128),
)

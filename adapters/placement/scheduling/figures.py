"""What engines take for what they do: one list for the scheduler's prior costs and the simulator.

`python -m loadtests.gpu.constants` writes the table H200 from the results of loadtests/gpu/, as far as they
go. docs/reference/gpu.md shows all of it. Milliseconds and tokens; `EngineCosts` and the simulator's
`Hardware` say what each is for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Figure:
    value: float
    source: str
    date: str


PUBLISHED: Final = "fitted to public measurements of vLLM 0.8.5 with Llama-3.1-8B on one H100"
NOT_SEEN: Final = "those measurements show none"
DEFAULTS: Final = "vLLM's default; the engine that was measured had graphs up to 128 tokens"
LINEAR: Final = "the measurements are on a line: within 6 % with the others"
TUNED: Final = "tuned in simulation"

SCHEDULER: Final[Mapping[str, Figure]] = {
    "stall": Figure(0.35, TUNED, "2026-11-23"),
    "per_request": Figure(18.0, TUNED, "2026-11-23"),
    "per_prompt_token": Figure(0.065, TUNED, "2026-11-23"),
    "distinct_in_flight": Figure(600.0, TUNED, "2026-11-23"),
    "evict": Figure(60.0, TUNED, "2026-11-23"),
    "wait_for_slot": Figure(3000.0, TUNED, "2026-11-23"),
}
"""What only the scheduler has, whatever the engine. Tuned with H100."""
H100: Final[Mapping[str, Figure]] = {
    "step": Figure(9.2, PUBLISHED, "2026-11-23"),
    "step_per_sequence": Figure(0.036, PUBLISHED, "2026-11-23"),
    "lora": Figure(3.3, PUBLISHED, "2026-11-23"),
    "lora_per_sequence": Figure(0.068, PUBLISHED, "2026-11-23"),
    "distinct": Figure(0.66, PUBLISHED, "2026-11-23"),
    "distinct_large": Figure(0.66, PUBLISHED, "2026-11-23"),
    "distinct_power": Figure(0.8, PUBLISHED, "2026-11-23"),
    "prompt": Figure(0.0, NOT_SEEN, "2026-11-23"),
    "prompt_token": Figure(0.066, PUBLISHED, "2026-11-23"),
    "graph_tokens": Figure(512.0, DEFAULTS, "2026-11-27"),
    "launch": Figure(0.0, NOT_SEEN, "2026-11-23"),
    "lora_launch": Figure(0.0, NOT_SEEN, "2026-11-23"),
    "activate": Figure(7.0, PUBLISHED, "2026-11-23"),
    "load": Figure(46.0, PUBLISHED, "2026-11-23"),
    "load_per_rank": Figure(3.0, PUBLISHED, "2026-11-23"),
    "kv_tokens": Figure(400000.0, PUBLISHED, "2026-11-23"),
    "slot_tokens": Figure(50.0, PUBLISHED, "2026-11-23"),
    "slot_tokens_per_rank": Figure(44.0, PUBLISHED, "2026-11-23"),
}
H200: Final[Mapping[str, Figure]] = {
    "step": Figure(4.7676, "NVIDIA H200, vLLM 0.26.0, 8B-shaped Llama", "2026-11-27"),
    "step_per_sequence": Figure(0.0144, "NVIDIA H200, vLLM 0.26.0, 8B-shaped Llama", "2026-11-27"),
    "lora": Figure(2.4268, "NVIDIA H200, vLLM 0.26.0, 8B-shaped Llama", "2026-11-27"),
    "lora_per_sequence": Figure(0.0098, "NVIDIA H200, vLLM 0.26.0, 8B-shaped Llama", "2026-11-27"),
    "distinct": Figure(0.6922, "NVIDIA H200, vLLM 0.26.0, 8B-shaped Llama", "2026-11-27"),
    "distinct_large": Figure(0.3401, "NVIDIA H200, vLLM 0.26.0, 8B-shaped Llama", "2026-11-27"),
    "distinct_power": Figure(1.0, LINEAR, "2026-11-27"),
    "prompt": Figure(17.166, "NVIDIA H200, vLLM 0.26.0, 8B-shaped Llama", "2026-11-27"),
    "prompt_token": Figure(0.0129, "NVIDIA H200, vLLM 0.26.0, 8B-shaped Llama", "2026-11-27"),
    "graph_tokens": Figure(512.0, DEFAULTS, "2026-11-27"),
    "launch": Figure(13.8832, "NVIDIA H200, vLLM 0.26.0, 8B-shaped Llama", "2026-11-27"),
    "lora_launch": Figure(40.3879, "NVIDIA H200, vLLM 0.26.0, 8B-shaped Llama", "2026-11-27"),
    "activate": Figure(15.4943, "NVIDIA H200, vLLM 0.26.0, 8B-shaped Llama", "2026-11-27"),
    "load": Figure(45.9937, "NVIDIA H200, vLLM 0.26.0, 8B-shaped Llama", "2026-11-27"),
    "load_per_rank": Figure(8.111, "NVIDIA H200, vLLM 0.26.0, 8B-shaped Llama", "2026-11-27"),
    "kv_tokens": Figure(839184.0, "NVIDIA H200, vLLM 0.26.0, 8B-shaped Llama", "2026-11-27"),
    "slot_tokens": Figure(50.0, PUBLISHED, "2026-11-23"),
    "slot_tokens_per_rank": Figure(44.0, PUBLISHED, "2026-11-23"),
}


@dataclass(frozen=True, slots=True)
class EngineFigures:
    gpu: str
    """The GPU that `--speed` is relative to."""
    what: str
    figures: Mapping[str, Figure]


ENGINE_MODELS: Final[Mapping[str, EngineFigures]] = {
    "h200": EngineFigures(
        "H200", "vLLM 0.26 with an 8B-shaped Llama on one H200, measured, slots of rank 64", H200
    ),
    "h100": EngineFigures("H100", "vLLM 0.8.5 with Llama-3.1-8B on one H100, from public measurements", H100),
}
MEASURED: Final = "h200"
"""The scheduler begins with its figures."""

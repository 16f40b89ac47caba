"""What engines take for what they do: one list for the scheduler's prior costs and the simulator.

Milliseconds and tokens; `EngineCosts` and the simulator's `Hardware` say what each is for. Those of engines
were measured with vLLM 0.26 and an 8B-shaped Llama in bfloat16, slots of rank 64:
`python -m loadtests.gpu.constants` fits and writes them. docs/reference/gpu.md shows all of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

SCHEDULER: Final[Mapping[str, float]] = {
    "stall": 0.35,
    "per_request": 18.0,
    "per_prompt_token": 0.065,
    "distinct_in_flight": 600.0,
    "evict": 60.0,
    "wait_for_slot": 3000.0,
}
"""What only the scheduler has, whatever the engine. Tuned in simulation on 2026-11-23, with a model of an
H100 that was fitted to public measurements of vLLM 0.8.5."""
H200: Final[Mapping[str, float]] = {
    "step": 4.7676,
    "step_per_sequence": 0.0144,
    "lora": 2.4268,
    "lora_per_sequence": 0.0098,
    "distinct": 0.6922,
    "distinct_large": 0.3401,
    "prompt": 17.166,
    "prompt_token": 0.0129,
    "launch": 13.8832,
    "lora_launch": 40.3879,
    "load": 45.9937,
    "load_per_rank": 8.111,
    "activate": 15.4943,
    "kv_tokens": 839184,
}
H100: Final[Mapping[str, float]] = {
    "step": 6.5282,
    "step_per_sequence": 0.0153,
    "lora": 2.3537,
    "lora_per_sequence": 0.0078,
    "distinct": 0.693,
    "distinct_large": 0.3422,
    "prompt": 10.5448,
    "prompt_token": 0.0088,
    "launch": 17.1099,
    "lora_launch": 37.9263,
    "load": 51.4125,
    "load_per_rank": 6.475,
    "activate": 12.7445,
    "kv_tokens": 425696,
}


@dataclass(frozen=True, slots=True)
class EngineFigures:
    gpu: str
    """The GPU that `--speed` is relative to."""
    what: str
    figures: Mapping[str, float]


ENGINE_MODELS: Final[Mapping[str, EngineFigures]] = {
    "h200": EngineFigures("H200", "vLLM 0.26 with an 8B-shaped Llama on one H200, measured", H200),
    "h100": EngineFigures("H100", "vLLM 0.26 with an 8B-shaped Llama on one H100, measured", H100),
}
MEASURED: Final = "h200"
"""The scheduler begins with its figures. It learns its own from each engine, and the H100's hardly differ."""

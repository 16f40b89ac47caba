"""What engines take for what they do: one list for the scheduler's prior costs and the simulator.

They were measured with vLLM 0.26 and an 8B-shaped Llama in bfloat16, slots of rank 64: `python -m
loadtests.gpu.constants` fits and writes them. docs/reference/gpu.md shows all of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class EngineFigures:
    """Milliseconds and tokens."""

    step: float
    """A decoding step of one sequence: reading the weights."""
    step_per_sequence: float
    lora: float
    """More for a step as soon as one sequence has an adapter."""
    lora_per_sequence: float
    distinct: float
    """More for each further adapter."""
    distinct_large: float
    """The same in a large step, whose work vLLM's LoRA kernels split differently."""
    prompt: float
    """More for a step with prompts, whatever their length."""
    prompt_token: float
    launch: float
    """More for a step that no CUDA graph covers, whose kernels are launched one by one."""
    lora_launch: float
    """More again if one sequence has an adapter."""
    load: float
    load_per_rank: float
    """Read an adapter from disk: `load + load_per_rank * rank`. The whole engine waits."""
    activate: float
    """Copy an adapter from CPU memory to a GPU slot."""
    kv_tokens: float
    """Tokens of KV cache without LoRA."""


H200: Final = EngineFigures(
    step=4.7676,
    step_per_sequence=0.0144,
    lora=2.4268,
    lora_per_sequence=0.0098,
    distinct=0.6922,
    distinct_large=0.3401,
    prompt=17.166,
    prompt_token=0.0129,
    launch=13.8832,
    lora_launch=40.3879,
    load=45.9937,
    load_per_rank=8.111,
    activate=15.4943,
    kv_tokens=839184,
)
H100: Final = EngineFigures(
    step=6.5282,
    step_per_sequence=0.0153,
    lora=2.3537,
    lora_per_sequence=0.0078,
    distinct=0.693,
    distinct_large=0.3422,
    prompt=10.5448,
    prompt_token=0.0088,
    launch=17.1099,
    lora_launch=37.9263,
    load=51.4125,
    load_per_rank=6.475,
    activate=12.7445,
    kv_tokens=425696,
)


@dataclass(frozen=True, slots=True)
class MeasuredEngine:
    gpu: str
    """The GPU that `--speed` is relative to."""
    what: str
    figures: EngineFigures


ENGINE_MODELS: Final[Mapping[str, MeasuredEngine]] = {
    "h200": MeasuredEngine("H200", "vLLM 0.26 with an 8B-shaped Llama on one H200, measured", H200),
    "h100": MeasuredEngine("H100", "vLLM 0.26 with an 8B-shaped Llama on one H100, measured", H100),
}
MEASURED: Final = "h200"
"""The scheduler begins with its figures. It learns its own from each engine, and the H100's hardly differ."""

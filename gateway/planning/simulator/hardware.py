"""What a step, a load and a slot cost on one GPU."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Self

from adapters.placement.scheduling.figures import ENGINE_MODELS, MEASURED, EngineFigures

LARGE = 128
"""Tokens in a step from which `distinct_large` holds."""


@dataclass(frozen=True, slots=True)
class Hardware(EngineFigures):
    """`python -m loadtests.sim fit` shows how well each of ENGINE_MODELS fits what was measured."""

    graph_tokens: int = 512
    """Tokens in the largest step that CUDA graphs cover: vLLM's default."""
    slot_tokens: int = 50
    slot_tokens_per_rank: int = 44
    """Tokens of KV cache that each slot takes away: fitted to public measurements of vLLM 0.8.5 with
    Llama-3.1-8B."""
    budget: int = 2048
    """Tokens in a step: decoding sequences first, prompts in chunks with what is left."""
    max_sequences: int = 384

    @classmethod
    def of(cls, model: str = MEASURED, **changes: Any) -> Self:
        """That of an engine model, by name. Raises KeyError."""
        return cls(**asdict(ENGINE_MODELS[model].figures) | changes)

    def step_seconds(self, sequences: int, adapters: int, prompt_tokens: int) -> float:
        ms = self.step + self.step_per_sequence * sequences
        if prompt_tokens:
            ms += self.prompt + self.prompt_token * prompt_tokens
        tokens = sequences + max(0, prompt_tokens - 1)  # a sequence whose prompt is read decodes nothing
        launched = tokens > self.graph_tokens
        if launched:
            ms += self.launch
        if adapters:
            ms += self.lora + self.lora_per_sequence * sequences
            distinct = self.distinct if tokens < LARGE else self.distinct_large
            ms += distinct * (adapters - 1)
            if launched:
                ms += self.lora_launch
        return ms / 1000

    def load_seconds(self, rank: int) -> float:
        return (self.load + self.load_per_rank * rank) / 1000

    def kv_left(self, slots: int, rank: int) -> int:
        """Tokens of KV cache beside so many slots of that rank."""
        return int(self.kv_tokens - slots * (self.slot_tokens + self.slot_tokens_per_rank * rank))

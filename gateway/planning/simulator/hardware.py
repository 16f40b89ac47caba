"""What a step, a load and a slot cost on one GPU."""

from __future__ import annotations

from dataclasses import dataclass

from adapters.placement.scheduling.figures import FIGURES


@dataclass(frozen=True, slots=True)
class Hardware:
    """Milliseconds and tokens. `python -m loadtests.sim fit` shows how well this fits public measurements of
    vLLM 0.8.5 with Llama-3.1-8B on one H100."""

    step: float = FIGURES["step"].value
    """A decoding step of one sequence: reading the weights."""
    step_per_sequence: float = FIGURES["step_per_sequence"].value
    lora: float = FIGURES["lora"].value
    """More for a step as soon as one sequence has an adapter."""
    lora_per_sequence: float = FIGURES["lora_per_sequence"].value
    distinct: float = FIGURES["distinct"].value
    """Times (distinct adapters - 1) to the power of `distinct_power`: they grow less than linearly."""
    distinct_power: float = FIGURES["distinct_power"].value
    prompt_token: float = FIGURES["prompt_token"].value
    activate: float = FIGURES["activate"].value
    """Copy an adapter from CPU memory to a GPU slot."""
    load: float = FIGURES["load"].value
    load_per_rank: float = FIGURES["load_per_rank"].value
    """Read an adapter from disk: `load + load_per_rank * rank`. The whole engine waits."""
    kv_tokens: int = int(FIGURES["kv_tokens"].value)
    """Tokens of KV cache without LoRA."""
    slot_tokens: float = FIGURES["slot_tokens"].value
    slot_tokens_per_rank: float = FIGURES["slot_tokens_per_rank"].value
    """Tokens of KV cache that each slot takes away."""
    budget: int = 2048
    """Tokens in a step: decoding sequences first, prompts in chunks with what is left."""
    max_sequences: int = 384

    def step_seconds(self, sequences: int, adapters: int, prompt_tokens: int) -> float:
        ms = self.step + self.step_per_sequence * sequences + self.prompt_token * prompt_tokens
        if adapters:
            ms += self.lora + self.lora_per_sequence * sequences
            ms += self.distinct * (adapters - 1) ** self.distinct_power
        return ms / 1000

    def load_seconds(self, rank: int) -> float:
        return (self.load + self.load_per_rank * rank) / 1000

    def kv_left(self, slots: int, rank: int) -> int:
        """Tokens of KV cache beside so many slots of that rank."""
        return int(self.kv_tokens - slots * (self.slot_tokens + self.slot_tokens_per_rank * rank))

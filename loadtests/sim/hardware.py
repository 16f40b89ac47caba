"""What a step, a load and a slot cost on one GPU."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Hardware:
    """vLLM 0.8.5 with Llama-3.1-8B on one H100. `python -m loadtests.sim fit` shows how well this fits what
    was measured there. Milliseconds and tokens."""

    step: float = 9.2
    """A decoding step of one sequence: reading the weights."""
    step_per_sequence: float = 0.036
    lora: float = 3.3
    """More for a step as soon as one sequence has an adapter."""
    lora_per_sequence: float = 0.068
    distinct: float = 0.66
    """Times (distinct adapters - 1) to the power of `distinct_power`: they grow less than linearly."""
    distinct_power: float = 0.8
    prompt_token: float = 0.066
    activate: float = 7.0
    """Copy an adapter from CPU memory to a GPU slot."""
    load: float = 46.0
    load_per_rank: float = 3.0
    """Read an adapter from disk: `load + load_per_rank * rank`. The whole engine waits."""
    kv_tokens: int = 400_000
    """Tokens of KV cache without LoRA."""
    slot_tokens: float = 50.0
    slot_tokens_per_rank: float = 44.0
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

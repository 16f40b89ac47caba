"""What things cost on one engine, in milliseconds of expected delay.

The prior figures were measured on vLLM 0.8.5 with Llama-3.1-8B on one H100, and tuned in simulation. What an
engine shows replaces them: see `LearnedCosts`.
"""

from __future__ import annotations

from dataclasses import dataclass

STALL = 0.35
"""Fraction of a load's time charged for each request in flight: a load stops the whole engine."""


@dataclass(slots=True)
class EngineCosts:
    """Mutable: `LearnedCosts` adapts the figures to the engine."""

    per_request: float = 18.0
    """For each request already running or waiting there."""
    per_prompt_token: float = 0.065
    """For each prompt token sent there whose answer has not started."""
    distinct: float = 600.0
    """For one more distinct adapter in flight, times the fraction of the engine's slots then in use."""
    activate: float = 7.0
    """Copy an adapter from CPU memory into a GPU slot."""
    load_base: float = 46.0
    load_per_rank: float = 3.0
    """Load from disk: `load_base + load_per_rank * rank`; 70, 94 and 142 ms at rank 8, 16 and 32."""
    evict: float = 60.0
    """The engine's memory is full, so that another version must go and may have to be loaded again."""
    wait_for_slot: float = 3000.0
    """Every slot is in use, so that the running answers of some adapter must end before another gets its
    turn."""

    def load(self, rank: int) -> float:
        """Milliseconds to load an adapter of this rank from disk."""
        return self.load_base + self.load_per_rank * rank

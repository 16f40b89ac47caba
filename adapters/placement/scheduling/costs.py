"""What things cost on one engine, in milliseconds of expected delay.

The prior figures are those of an H200, and charges that were tuned in simulation on 2026-11-23, with a model
of an H100 that was fitted to public measurements of vLLM 0.8.5. What an engine shows replaces them: see
`LearnedCosts`.
"""

from __future__ import annotations

from dataclasses import dataclass

from adapters.placement.scheduling.figures import H200

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
    activate: float = H200.activate
    """Copy an adapter from CPU memory into a GPU slot."""
    load_base: float = H200.load
    load_per_rank: float = H200.load_per_rank
    """Load from disk: `load_base + load_per_rank * rank`."""
    evict: float = 60.0
    """The engine's memory is full, so that another version must go and may have to be loaded again."""
    wait_for_slot: float = 3000.0
    """Every slot is in use, so that the running answers of some adapter must end before another gets its
    turn."""

    @classmethod
    def merged(cls) -> EngineCosts:
        """The prior of an engine into whose weights a version is merged: LoRA's kernels do not run there."""
        plain, lora = H200.step_per_sequence, H200.lora_per_sequence
        return cls(per_request=cls().per_request * plain / (plain + lora))

    def load(self, rank: int) -> float:
        """Milliseconds to load an adapter of this rank from disk."""
        return self.load_base + self.load_per_rank * rank

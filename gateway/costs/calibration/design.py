"""Designs loads whose durations identify the weights. Pure and deterministic."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

_LONGEST_PROMPT = 4096
_LONGEST_ANSWER = 512


@dataclass(frozen=True, slots=True)
class DesignedLoad:
    """Requests of one shape, sent with the concurrency that saturates the engine."""

    phase: str
    prompt: int
    """Tokens of each prompt."""
    shared: int
    """Leading prompt tokens that all requests of the load share and the engine has cached."""
    completion: int


def loads(max_model_len: int, repeats: int) -> Iterator[DesignedLoad]:
    """Every phase `repeats` times, interleaved, so that a drift in the engine's speed affects all phases
    alike.

    - prefill: long new prompts, one-token answers
    - cached: the same prompts again
    - decode: the shortest prompts, long answers
    - mixed: long prompts and long answers, which keep tokens in memory for long
    """
    longest = min(max_model_len // 2, _LONGEST_PROMPT)
    answer = min(max_model_len // 3, _LONGEST_ANSWER)
    shapes = [
        DesignedLoad("prefill", longest, 0, 1),
        DesignedLoad("cached", longest, longest, 1),
        DesignedLoad("decode", 8, 0, answer),
        DesignedLoad("mixed", longest, 0, answer),
        DesignedLoad("prefill", max(longest // 4, 16), 0, 1),
        DesignedLoad("cached", max(longest // 2, 16), max(longest // 2, 16), 1),
        DesignedLoad("decode", 8, 0, max(answer // 4, 4)),
        DesignedLoad("mixed", longest // 2, 0, answer // 2),
        DesignedLoad("mixed", longest // 2, longest // 4, answer // 4),
    ]
    for _ in range(repeats):
        yield from shapes

"""Which loads tell the weights apart. Pure: the same engine and the same knowledge give the same plan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

_LONGEST_PROMPT = 4096
_LONGEST_ANSWER = 512


@dataclass(frozen=True, slots=True)
class DesignedLoad:
    """Requests of one shape, all at once but for `at_once`."""

    phase: str
    prompt: int
    """Tokens of each prompt."""
    shared: int
    """Tokens at the prompt's beginning that all requests of the load share, and the engine knows already."""
    completion: int


def loads(max_model_len: int, repeats: int) -> Iterator[DesignedLoad]:
    """Every phase `repeats` times, taking turns, so that a drift of the engine's speed touches all alike.

    - prefill: long prompts that nobody asked before, one token of answer
    - cached: the same prompts again
    - decode: the shortest prompts, long answers
    - mixed: long prompts and long answers, where tokens are kept for long
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

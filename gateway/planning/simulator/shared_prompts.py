"""Workloads whose prompts share what they begin with: conversations, agents with tools, and documents.

A prompt is a sequence of contents, each a number and its tokens; prompts share a content by its number. Every
adapter has its own instructions, tools and documents, and popularity is Zipf with exponent 0.92.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from gateway.planning.simulator.simulated_request import BLOCK_TOKENS, Blocks
from gateway.planning.simulator.workloads import (
    OUTPUT_MEAN,
    OUTPUT_MEDIAN,
    TENANTS,
    Workload,
)

Content = tuple[int, int]
"""A number, and its tokens."""
INSTRUCTIONS = 600
"""Tokens of an adapter's instructions, the same in each of its prompts."""
TURNS, THINK_SECONDS, QUESTION = 6, 20.0, 120
"""A conversation: mean number of turns, mean time between two, and median tokens of what its user says."""
TOOLS, STEPS, STEP_SECONDS, RESULT = 6_000, 8, 4.0, 400
"""An agent: tokens of its tools, mean number of steps, mean time between two, median tokens of a result."""
DOCUMENTS, DOCUMENT, AMONG = 3, 2_000, 60
"""A question about documents: so many before it, their mean tokens, and how many an adapter has."""
_RANK = 16
_POSITIVE = (1 << 64) - 1


@dataclass(slots=True)
class _Drawn:
    """What a kind of prompts may draw from. Mutable: contents are numbered as they come up."""

    rng: np.random.Generator
    adapters: int
    numbers: count[int] = field(default_factory=lambda: count(1))
    shared: dict[tuple[int, str, int], Content] = field(default_factory=dict)

    def new(self, tokens: int) -> Content:
        return next(self.numbers), tokens

    def of_adapter(self, adapter: int, kind: str, tokens: int, number: int = 0) -> Content:
        """The same content each time."""
        key = adapter, kind, number
        if key not in self.shared:
            self.shared[key] = self.new(tokens)
        return self.shared[key]

    def length(self, median: float, spread: float = 0.6) -> int:
        return max(1, round(self.rng.lognormal(math.log(median), spread)))

    def answer(self) -> int:
        return min(1000, self.length(OUTPUT_MEDIAN, math.sqrt(2 * math.log(OUTPUT_MEAN / OUTPUT_MEDIAN))))

    def zipf(self, among: int) -> int:
        weights = np.arange(1, among + 1, dtype=np.float64) ** -0.92
        return int(self.rng.choice(among, p=weights / weights.sum()))


@dataclass(frozen=True, slots=True)
class _Prompt:
    arrival: float
    adapter: int
    contents: tuple[Content, ...]
    answer: Content


def _dialogue(
    drawn: _Drawn,
    start: float,
    adapter: int,
    beginning: tuple[Content, ...],
    *,
    turns: int,
    seconds: float,
    length: int,
    answer: Callable[[], int],
) -> Iterator[_Prompt]:
    """Each prompt is the one before, its answer, and something new."""
    contents = beginning
    for _ in range(1 + drawn.rng.poisson(turns - 1)):
        contents = (*contents, drawn.new(drawn.length(length)))
        reply = drawn.new(answer())
        yield _Prompt(start, adapter, contents, reply)
        contents = (*contents, reply)
        start += drawn.rng.exponential(seconds)


def _conversation(drawn: _Drawn, start: float, adapter: int) -> Iterator[_Prompt]:
    beginning = (drawn.of_adapter(adapter, "instructions", INSTRUCTIONS),)
    return _dialogue(
        drawn,
        start,
        adapter,
        beginning,
        turns=TURNS,
        seconds=THINK_SECONDS,
        length=QUESTION,
        answer=drawn.answer,
    )


def _agent(drawn: _Drawn, start: float, adapter: int) -> Iterator[_Prompt]:
    tools = drawn.of_adapter(adapter, "tools", TOOLS)
    beginning = (tools, drawn.of_adapter(adapter, "instructions", INSTRUCTIONS))
    return _dialogue(
        drawn,
        start,
        adapter,
        beginning,
        turns=STEPS,
        seconds=STEP_SECONDS,
        length=RESULT,
        answer=lambda: drawn.length(60),
    )


def _question(drawn: _Drawn, start: float, adapter: int) -> Iterator[_Prompt]:
    """The documents that suit it best come first; the best is drawn by popularity, and the others with it."""
    best = drawn.zipf(AMONG)
    numbers = [best, *((best + int(step)) % AMONG for step in 1 + drawn.rng.integers(4, size=DOCUMENTS - 1))]
    documents = [drawn.of_adapter(adapter, "document", drawn.length(DOCUMENT, 0.3), n) for n in numbers]
    instructions = drawn.of_adapter(adapter, "instructions", INSTRUCTIONS)
    contents = (instructions, *documents, drawn.new(drawn.length(60)))
    yield _Prompt(start, adapter, contents, drawn.new(drawn.answer()))


SHARED: dict[str, tuple[Callable[[_Drawn, float, int], Iterator[_Prompt]], float]] = {
    "conversations": (_conversation, TURNS),
    "agents": (_agent, STEPS),
    "documents": (_question, 1.0),
}
"""What begins at a time, and the mean number of its requests."""


def generate_shared(name: str, rate: float, seconds: float, seed: int, *, adapters: int = 8) -> Workload:
    """Requests at about `rate` a second, once the first dialogues have got going."""
    kind, mean = SHARED[name]
    drawn = _Drawn(np.random.default_rng(seed), adapters)
    prompts: list[_Prompt] = []
    start = 0.0
    while (start := start + drawn.rng.exponential(mean / rate)) < seconds:
        prompts += (p for p in kind(drawn, start, drawn.zipf(adapters)) if p.arrival < seconds)
    prompts.sort(key=lambda prompt: prompt.arrival)
    adapter = np.array([prompt.adapter for prompt in prompts], dtype=np.int64)
    return Workload(
        arrival=np.array([prompt.arrival for prompt in prompts]),
        adapter=adapter,
        tenant=adapter % TENANTS,
        rank=np.full(len(prompts), _RANK),
        prompt=np.array([sum(tokens for _, tokens in p.contents) for p in prompts], dtype=np.int64),
        output=np.array([p.answer[1] for p in prompts], dtype=np.int64),
        blocks=[(blocks_of(p.contents), blocks_of((*p.contents, p.answer))) for p in prompts],
    )


def blocks_of(contents: tuple[Content, ...]) -> Blocks:
    """A number for each whole block: the same for prompts that are the same up to its end."""
    blocks: list[int] = []
    chained, room, parts = 0, BLOCK_TOKENS, list[tuple[int, int, int]]()
    for number, tokens in contents:
        start = 0
        while tokens - start >= room:
            parts.append((number, start, room))
            chained = hash((chained, *parts)) & _POSITIVE
            blocks.append(chained)
            start, room, parts = start + room, BLOCK_TOKENS, []
        if start < tokens:
            parts.append((number, start, tokens - start))
            room -= tokens - start
    return tuple(blocks)

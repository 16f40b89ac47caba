"""How much an engine's prefix cache still has of what the engine has seen.

Nothing tells what an engine has evicted. But each answer tells how much of its prompt was cached, and engines
evict what was used longest ago, so the part that is left depends on the time since: it is learned for classes
of ages. An engine that caches nothing, or that has restarted, shows in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

AGES: Final = (1.0, 4.0, 16.0, 64.0, 256.0, 1024.0)
"""Seconds: the ends of the classes; the last is open. In the first are prompts whose twin may still be
waiting to be computed."""
PRIOR: Final = 0.8
"""Part that is expected before the engine has reported any. Some engines never do."""
WEIGHT: Final = 0.1
"""The latest answer's."""
SAVED: Final = 0.75
"""Part of a prompt token's time that a cached one saves. On an H200, a computed token of an 8B Llama takes
31 µs and a cached one 8, on an H100 29 and 4: docs/reference/gpu.md."""


class Seen(NamedTuple):
    """What an engine has seen of a prompt before."""

    share: float
    """Part of the prompt, from its beginning, in (0, 1]."""
    age: int
    """Class of the time since, an index for PrefixCache."""


NOTHING_SEEN: Final[Mapping[str, Seen]] = {}


def age_class(seconds: float) -> int:
    return next((number for number, end in enumerate(AGES) if seconds < end), len(AGES))


@dataclass(slots=True)
class PrefixCache:
    """Mutable: one engine's."""

    kept: list[float] = field(default_factory=lambda: [PRIOR] * (len(AGES) + 1))
    """By class of age: the part of what it had seen that was cached."""

    def expected(self, seen: Seen) -> float:
        """Part of the prompt that is expected to be cached."""
        return seen.share * self.kept[seen.age]

    def uncached(self, tokens: int, seen: Seen) -> int:
        """As many tokens of a prompt as take the time of all of them with what is expected to be cached."""
        return max(1, round(tokens * (1 - SAVED * self.expected(seen))))

    def answered(self, seen: Seen, *, prompt: int, cached: int) -> None:
        """The engine reports so many tokens."""
        part = min(1.0, cached / (prompt * seen.share))
        self.kept[seen.age] += (part - self.kept[seen.age]) * WEIGHT

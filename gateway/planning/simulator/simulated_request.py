"""One simulated request, from arrival to end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from adapters.placement.requirements import NO_LABELS
from adapters.placement.scheduling.prefix_cache import Seen

Blocks = tuple[int, ...]
"""What a prompt consists of, block by block: each number stands for all tokens up to the block's end."""
BLOCK_TOKENS = 128
"""In an engine's prefix cache. vLLM's own blocks are smaller, of 16 tokens."""
REMEMBERED = 4
"""Such blocks in one of the gateway's memory of prefixes."""


class Outcome(StrEnum):
    DONE = "done"
    REFUSED = "refused"
    """Its deadline passed before it was sent to an engine."""
    CANCELLED = "cancelled"
    """Its deadline passed while it waited in an engine's queue."""


class Tier(StrEnum):
    """Where the engine had the adapter when the request was placed."""

    GPU = "gpu"
    CPU = "cpu"
    DISK = "disk"


@dataclass(slots=True, eq=False)
class Request:
    """Mutable: the simulation fills in what becomes of it."""

    arrival: float
    tenant: str
    adapter: str
    """Empty: the base model."""
    rank: int
    prompt: int
    output: int
    """Tokens."""
    blocks: Blocks = ()
    """Its prompt's, as far as others share them."""
    answered: Blocks = ()
    """Those of its prompt and its answer."""
    requires: Mapping[str, str] = field(default_factory=lambda: NO_LABELS)
    """Labels that its engine must have."""
    weight: float = 1.0
    level: int = 1
    """Its class: 0 high, 1 normal, 2 low."""
    deadline: float = 0.0
    """For the first token."""
    worker: int = 0
    engine: str = ""
    first: float = -1.0
    """Time of the first token; -1: none."""
    end: float = -1.0
    outcome: Outcome | None = None
    tier: Tier = Tier.GPU
    saved: int = 0
    """Prompt tokens that the engine had in its prefix cache."""
    seen: Seen | None = None
    """What its engine had seen of the prompt, as far as its worker knew."""
    pending: int = 0
    """Prompt tokens that its worker expects the engine to compute."""
    left: int = 0
    """Prompt tokens that the engine has yet to process."""
    last: int = 0
    """The engine's step with its last token."""
    running: bool = False
    done: Callable[[], None] | None = None
    """Called at the end instead of the gateway: of a probe."""

    @property
    def remembered(self) -> Blocks:
        """Its prompt's blocks, as large as the gateway's."""
        return self.blocks[REMEMBERED - 1 :: REMEMBERED]

    @property
    def ttft(self) -> float:
        return self.first - self.arrival

    @property
    def itl(self) -> float:
        """Mean seconds between tokens."""
        return (self.end - self.first) / (self.output - 1) if self.output > 1 else 0.0

"""Which engine saw the beginning of a prompt last, so that its prefix cache may save the prefill."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

KEPT = 10_000
CHARACTERS = 2_000
"""Length of the beginning that is compared: enough to tell system prompts and conversations apart."""


class PrefixMemory:
    """(adapter version, beginning of the prompt) → engine. Bounded, least recently used first."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._engines: OrderedDict[tuple[str, int], str] = OrderedDict()

    def __repr__(self) -> str:
        return f"<PrefixMemory of {len(self._engines)}>"

    def engine(self, version: str, prefix: int) -> str:
        """Empty: unknown."""
        return self._engines.get((version, prefix), "") if prefix else ""

    def note(self, version: str, prefix: int, engine: str) -> None:
        if not prefix:
            return
        self._engines[version, prefix] = engine
        self._engines.move_to_end((version, prefix))
        if len(self._engines) > self._kept:
            self._engines.popitem(last=False)


def prefix_of(body: dict[str, Any], salt: str) -> int:
    """A hash of the beginning of the prompt; 0: it has none that counts. Only this process knows the hash.
    `salt`: of the engines' caches. With it, no tenant learns from the choice of engines what others asked."""
    messages = body.get("messages")
    if messages:
        contents = [m.get("content") for m in messages[:2]]
        beginning = [content[:CHARACTERS] for content in contents if type(content) is str]
        return hash((salt, *beginning)) if beginning else 0
    prompt = body.get("prompt")
    return hash((salt, prompt[:CHARACTERS])) if isinstance(prompt, str) else 0

"""An engine's token counts, validated: what nobody could have counted is not a count.

Pure. The relay checks what an engine sends, the attempt's meter checks again before it writes a line of the
usage log, and the log's reader checks that line.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

MAX_TOKENS_PER_CHOICE = 10_000_000
"""Tokens of one prompt, or of one choice's answer: the longest context that any model known to vLLM has
(Llama 4 Scout). What an engine reports beyond it is an error or a lie; either way it is billed to nobody."""

MAX_CHOICES = 1024
"""Choices of one request, `n` for each prompt: `gateway.dataplane.request` refuses more."""
MAX_GPUS = 1_000_000
"""GPUs of one engine: `gateway.api.admin` takes no more."""


@dataclass(frozen=True, slots=True)
class Counts:
    prompt: int
    completion: int
    cached: int | None
    """Part of `prompt`; None: the engine did not say."""
    reasoning: int
    """Part of `completion`."""


def read_counts(usage: object, *, prompts: int, choices: int) -> Counts | None:
    """The counts in an engine's `usage` object; None if it is malformed or impossible.

    `prompts` of the request, and `choices` in all: `n` for each prompt. A missing or null field
    counts as zero (`cached`: as not said): not every endpoint and not every version sends all of them.
    """
    if type(usage) is not dict:
        return None
    prompt = _count(usage.get("prompt_tokens"))
    completion = _count(usage.get("completion_tokens"))
    cached: Any = None
    reasoning: Any = 0
    details = usage.get("prompt_tokens_details")
    if details is not None:
        if type(details) is not dict:
            return None
        cached = details.get("cached_tokens")
    details = usage.get("completion_tokens_details")
    if details is not None:
        if type(details) is not dict:
            return None
        reasoning = _count(details.get("reasoning_tokens"))
    if not plausible(prompt, completion, cached, reasoning, prompts=prompts, choices=choices):
        return None
    return Counts(prompt, completion, cached, reasoning)


def plausible(
    prompt: object, completion: object, cached: object, reasoning: object, *, prompts: int, choices: int
) -> bool:
    """Integers (a bool is none), 0 ≤ each ≤ its bound, and no part above its whole."""
    return (
        type(prompt) is int
        and type(completion) is int
        and type(reasoning) is int
        and 0 <= prompt <= MAX_TOKENS_PER_CHOICE * prompts
        and 0 <= reasoning <= completion <= MAX_TOKENS_PER_CHOICE * choices
        and (cached is None or (type(cached) is int and 0 <= cached <= prompt))
    )


def _count(value: Any) -> Any:
    """Null and missing are zero; everything else is for `plausible` to judge."""
    return 0 if value is None else value

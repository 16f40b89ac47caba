"""Validates an engine's token counts.

Pure. The relay checks what an engine sends, the attempt's meter checks again before it writes a line of the
usage log, and the log's reader checks that line.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

MAX_TOKENS_PER_CHOICE = 10_000_000
"""Tokens of one prompt, or of one choice's answer: the longest context that any model known to vLLM has
(Llama 4 Scout). A larger count is wrong or forged, and is billed to no one."""

MAX_CHOICES = 1024
"""Most choices of one request, `n` per prompt; `gateway.dataplane.request` refuses more."""
MAX_GPUS = 1_000_000
"""Most GPUs of one engine; `gateway.api.admin` refuses more."""


@dataclass(slots=True)
class Counts:
    prompt: int
    completion: int
    cached: int | None
    """Part of `prompt`; None: not reported."""
    reasoning: int
    """Part of `completion`."""


def read_counts(usage: object, *, prompts: int, choices: int) -> Counts | None:
    """The counts in an engine's `usage` object; None if it is malformed or impossible.

    `prompts`: of the request. `choices`: in total, `n` per prompt. A missing or null field counts as zero
    (`cached`: as not reported), because not every endpoint and version sends all fields.
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
    """Whether all are integers (not bools) within 0 and their bounds, and no part exceeds its whole."""
    return (
        type(prompt) is int
        and type(completion) is int
        and type(reasoning) is int
        and 0 <= prompt <= MAX_TOKENS_PER_CHOICE * prompts
        and 0 <= reasoning <= completion <= MAX_TOKENS_PER_CHOICE * choices
        and (cached is None or (type(cached) is int and 0 <= cached <= prompt))
    )


def _count(value: Any) -> Any:
    """Null and missing are zero; `plausible` judges everything else."""
    return 0 if value is None else value

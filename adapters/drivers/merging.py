"""Answers to several prompts, each of its own call, as vLLM gives them in one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def merged(answers: Sequence[tuple[str, list[float], Any]]) -> dict[str, Any]:
    """`answers`: text, the logprobs of the likeliest first tokens, and `usage`, in order of the prompts."""
    return {
        "choices": [
            {"index": i, "text": text, "logprobs": {"top_logprobs": [dict(enumerate(logprobs))]}}
            for i, (text, logprobs, _) in enumerate(answers)
        ],
        "usage": {
            "prompt_tokens": sum(usage["prompt_tokens"] for _, _, usage in answers),
            "completion_tokens": sum(usage["completion_tokens"] for _, _, usage in answers),
        },
    }

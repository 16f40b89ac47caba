"""Estimates the tokens of a prompt if the engine reports none. The record marks it as an estimate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CHARACTERS_PER_TOKEN = 4
"""Characters per token in English with current tokenizers; fewer in other scripts. Good enough for an
estimate."""
PER_MESSAGE = 4
"""Tokens that a chat template adds per message."""


def prompt_tokens(body: Mapping[str, Any]) -> int:
    """Estimated prompt tokens, at least 1, of a checked request body of any endpoint. Token ids are counted
    exactly; images and tools are not counted."""
    messages = body.get("messages")
    if messages:
        texts = sum(_characters(message.get("content")) for message in messages)
        return PER_MESSAGE * len(messages) + texts // CHARACTERS_PER_TOKEN
    prompt = body.get("prompt")
    prompts = prompt if type(prompt) is list and prompt and type(prompt[0]) is not int else [prompt]
    return max(1, sum(map(_of_prompt, prompts)))


def _of_prompt(prompt: Any) -> int:
    if type(prompt) is list:
        return len(prompt)
    return max(1, len(prompt) // CHARACTERS_PER_TOKEN) if type(prompt) is str else 0


def _characters(content: Any) -> int:
    if type(content) is str:
        return len(content)
    if type(content) is not list:
        return 0
    texts = (part.get("text") for part in content if type(part) is dict)
    return sum(len(text) for text in texts if type(text) is str)

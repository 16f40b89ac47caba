"""What a prompt may count when the engine never says: a guess, and marked as one in the record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CHARACTERS_PER_TOKEN = 4
"""Of English under today's tokenizers; other scripts have fewer. A guess needs no better."""
PER_MESSAGE = 4
"""Tokens that a chat template puts around each message."""


def prompt_tokens(body: Mapping[str, Any]) -> int:
    """At least 1, for a checked request body of any endpoint. Token ids count as what they are, pictures and
    tools as nothing."""
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

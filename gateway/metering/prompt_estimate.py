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
        texts = sum([_characters(message.get("content")) for message in messages])
        return PER_MESSAGE * len(messages) + texts // CHARACTERS_PER_TOKEN
    return max(1, sum(_of_texts(body[name]) for name in _TEXTS if name in body))


_TEXTS = (
    *("prompt", "input", "query", "queries", "documents", "items"),
    *("data_1", "data_2", "text_1", "text_2"),
)
"""Fields with texts or token ids, one or a list, of the endpoints that have no messages."""


def _of_texts(given: Any) -> int:
    texts = given if type(given) is list and given and type(given[0]) is not int else [given]
    return sum(map(_of_prompt, texts))


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

"""The APIs that the bench asks for the same answer, and how each says it: one entry in APIS for each.

Pure functions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Said = dict[str, Any]
QUESTION = "When will my card arrive?"


@dataclass(frozen=True, slots=True)
class Api:
    path: str
    body: Callable[[int], Said]
    """A request for so many tokens, besides `model` and `stream`."""
    text: Callable[[Said], str]
    """Text of a whole answer."""
    used: Callable[[Said], int]
    """Completion tokens of a whole answer."""
    piece: Callable[[Said], str | None]
    """The text of an event; None: it is not about text."""
    is_last: Callable[[Said], bool]
    """Whether an event says that the answer has ended."""
    done: bool = False
    """`[DONE]` follows the last event."""


def _chat_body(tokens: int) -> Said:
    return {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": tokens}


def _chat_piece(event: Said) -> str:
    if event.get("usage"):
        msg = "unrequested usage"
        raise ValueError(msg)
    return event["choices"][0]["delta"].get("content") or ""


def _responses_text(answer: Said) -> str:
    return "".join(part["text"] for item in answer["output"] for part in item["content"])


APIS: dict[str, Api] = {
    "chat": Api(
        "/v1/chat/completions",
        _chat_body,
        text=lambda answer: str(answer["choices"][0]["message"]["content"]),
        used=lambda answer: int(answer["usage"]["completion_tokens"]),
        piece=_chat_piece,
        is_last=lambda event: event["choices"][0].get("finish_reason") is not None,
        done=True,
    ),
    "responses": Api(
        "/v1/responses",
        lambda tokens: {"input": QUESTION, "max_output_tokens": tokens},
        text=_responses_text,
        used=lambda answer: int(answer["usage"]["output_tokens"]),
        piece=lambda event: event["delta"] if event["type"] == "response.output_text.delta" else None,
        is_last=lambda event: event["type"] in ("response.completed", "response.incomplete"),
    ),
    "messages": Api(
        "/v1/messages",
        _chat_body,
        text=lambda answer: str(answer["content"][0]["text"]),
        used=lambda answer: int(answer["usage"]["output_tokens"]),
        piece=lambda event: event["delta"]["text"] if event["type"] == "content_block_delta" else None,
        is_last=lambda event: event["type"] == "message_stop",
    ),
}

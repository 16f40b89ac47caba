"""The fields of /tokenize and /detokenize."""

from __future__ import annotations

from typing import Any

from gateway.fields.checks import switch, text, token_ids
from gateway.fields.rule import Rule, WrongError, bounded, passed
from gateway.fields.sampling import SAMPLING
from gateway.fields.tables import CHAT

MAX_TOKENS = 1_000_000
"""Token ids in one request to /detokenize."""
TOKENIZED_MUST = "be a string, unless there are `messages`"
TOKENS_MUST = f"list at most {MAX_TOKENS:,} token ids"

_OURS = {name: SAMPLING[name] for name in ("model", "user", "safety_identifier", "metadata")}
_OF_CHAT = (
    "messages",
    "tools",
    "add_generation_prompt",
    "continue_final_message",
    "chat_template",
    "chat_template_kwargs",
    "media_io_kwargs",
    "mm_processor_kwargs",
)

TOKENIZE: dict[str, Rule] = {
    **_OURS,
    "prompt": bounded(text(), "a text; instead of `messages`"),
    **{name: CHAT[name] for name in _OF_CHAT},
    "add_special_tokens": SAMPLING["add_special_tokens"],
    "return_token_strs": passed(switch, "format of the answer"),
}
DETOKENIZE: dict[str, Rule] = {
    **_OURS,
    "tokens": bounded(token_ids(MAX_TOKENS), "their text is the answer"),
}


def of_chat(chat: dict[str, Any]) -> dict[str, Any]:
    """The request to /tokenize for a chat's prompt: those of its fields that change it."""
    effort = chat.get("reasoning_effort")
    if effort is not None:  # as a chat's is rendered
        effects = {"reasoning_effort": effort, "enable_thinking": True}
        chat = chat | {"chat_template_kwargs": effects | chat.get("chat_template_kwargs", {})}
    return {name: value for name, value in chat.items() if name in TOKENIZE}


def tokenized(body: dict[str, Any]) -> int:
    """Checks that the fields go together, and counts the texts: one. Raises WrongError."""
    if "prompt" not in body and "messages" not in body:
        raise WrongError(TOKENIZED_MUST, path="prompt")
    if "prompt" in body and "messages" in body:
        raise WrongError("be absent if there are `messages`", path="prompt")
    return 1


def token_lists(body: dict[str, Any]) -> int:
    """As `tokenized`, for lists of tokens."""
    if "tokens" not in body:
        raise WrongError(TOKENS_MUST, path="tokens")
    return 1

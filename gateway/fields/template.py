"""`chat_template_kwargs`: values for the model's own chat template, a Jinja program that the engine runs."""

from __future__ import annotations

import re
from typing import Any

from gateway.fields.rule import FieldReading, WrongError

MAX_KWARGS = 32
MAX_TEXT = 4096
MAX_NUMBER = 1_000_000
"""A template may loop so often, or hand it on as a length."""
RESERVED = frozenset(
    {
        "chat_template", "tokenize", "tokenizer", "tokenizer_kwargs", "conversation", "messages", "tools",
        "documents", "padding", "truncation", "max_length", "return_tensors", "return_dict",
        "return_assistant_tokens_mask", "add_generation_prompt", "continue_final_message", "response_format",
    }
)  # fmt: skip
"""Arguments of the function that renders templates (`max_length` with `padding` would allocate as much as the
client likes), and what has a field of its own."""
_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9_]{0,63}", re.ASCII)


def template_kwargs(value: Any, _: FieldReading) -> Any:
    if type(value) is not dict or len(value) > MAX_KWARGS:
        raise WrongError(f"be an object of at most {MAX_KWARGS} names")
    for name, one in value.items():
        if _NAME.fullmatch(name) is None:
            raise WrongError("have names of letters, digits and `_`, which begin with a letter")
        if name in RESERVED:
            raise WrongError(f"not name `{name}`, which belongs to the engine or has a field of its own")
        if not (
            _is_small(one) or (type(one) is list and len(one) <= MAX_KWARGS and all(map(_is_small, one)))
        ):
            raise WrongError(
                f"hold true, false, null, numbers up to {MAX_NUMBER:,}, strings up to {MAX_TEXT:,} "
                f"characters, and lists of up to {MAX_KWARGS} of these"
            )
    return value


def _is_small(v: Any) -> bool:
    if type(v) is str:
        return len(v) <= MAX_TEXT
    return v is None or type(v) is bool or (type(v) in (int, float) and abs(v) <= MAX_NUMBER)

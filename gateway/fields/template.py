"""Chat templates, Jinja programs that the engine runs: values for the model's own (`chat_template_kwargs`),
and a request's own template if the operator allows it."""

from __future__ import annotations

import re
from typing import Any

from gateway.fields.rule import FieldReading, WrongError

MAX_KWARGS = 32
MAX_TEXT = 4096
MAX_TEMPLATE = 64 * 1024
MAX_NUMBER = 1_000_000
"""A template may use a number as a loop count or a length."""
RESERVED = frozenset(
    {
        "chat_template", "tokenize", "tokenizer", "tokenizer_kwargs", "conversation", "messages", "tools",
        "documents", "padding", "truncation", "max_length", "return_tensors", "return_dict",
        "return_assistant_tokens_mask", "add_generation_prompt", "continue_final_message", "response_format",
    }
)  # fmt: skip
"""Parameters of the function that renders templates (with `max_length` and `padding`, a client could allocate
any amount of memory), and names that have their own field."""
_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9_]{0,63}", re.ASCII)


def template_kwargs(value: Any, _: FieldReading) -> Any:
    if type(value) is not dict or len(value) > MAX_KWARGS:
        raise WrongError(f"be an object of at most {MAX_KWARGS} names")
    for name, argument in value.items():
        if _NAME.fullmatch(name) is None:
            raise WrongError("have names that begin with a letter and contain only letters, digits and `_`")
        if name in RESERVED:
            raise WrongError(f"not contain `{name}`, which belongs to the engine or has its own field")
        if not (
            _is_small(argument)
            or (type(argument) is list and len(argument) <= MAX_KWARGS and all(map(_is_small, argument)))
        ):
            raise WrongError(
                f"hold true, false, null, numbers up to {MAX_NUMBER:,}, strings up to {MAX_TEXT:,} "
                f"characters, and lists of up to {MAX_KWARGS} of these"
            )
    return value


def chat_template(value: Any, reading: FieldReading) -> Any:
    if not reading.policy.chat_templates:
        raise WrongError("a template is a program that the engine would run", code="unsupported_parameter")
    if type(value) is not str or len(value) > MAX_TEMPLATE:
        raise WrongError(f"be a string of at most {MAX_TEMPLATE:,} characters")
    return value


def _is_small(v: Any) -> bool:
    if type(v) is str:
        return len(v) <= MAX_TEXT
    return v is None or type(v) is bool or (type(v) in (int, float) and abs(v) <= MAX_NUMBER)

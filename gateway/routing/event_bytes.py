"""Recognizes plain events of a stream, those that only add text, by their bytes: without parsing JSON.

`learn` takes an event that was parsed and serializes it again, with marks in place of its text and its token
counts. A later event is recognized only if it has exactly the bytes between the marks, a JSON string for the
text and JSON integers for the counts. So it differs from the parsed event in these values alone. What looks
like JSON within the text cannot be mistaken for it: quotes within a string are escaped.

Everything else must be parsed: events of another shape, escapes that a serializer would write differently.
Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import orjson

_CHARACTERS = rb'[^"\\\x00-\x1f]*+'
_ESCAPE = rb'\\(?:["\\bfnrt]|u00(?:0[0-7bef]|1[0-9a-f]))'
"""As orjson writes them: each character in one way only."""
_INTEGER = rb"(?:0|[1-9][0-9]{0,9})"
_VALUES = {
    b"text": rb"(?P<text>%b(?:%b%b)*+)" % (_CHARACTERS, _ESCAPE, _CHARACTERS),
    b"prompt": rb"(?P<prompt>%b)" % _INTEGER,
    b"completion": rb"(?P<completion>%b)" % _INTEGER,
    b"reasoning": rb"(?P<reasoning>%b)" % _INTEGER,
    b"integer": _INTEGER,
}
"""Mark → pattern of what it stands for."""
_COUNTS = {
    ("prompt_tokens",): "prompt",
    ("completion_tokens",): "completion",
    ("completion_tokens_details", "reasoning_tokens"): "reasoning",
}
"""Where a count is in `usage` → its mark."""
_CONTENT = {"content", "text"}


@dataclass(frozen=True, slots=True)
class PlainEvent:
    """The shape of a stream's plain events, and of what the client gets for them."""

    head: bytes
    """Everything before the text: the response's id, the engine's name of the model."""
    rest: re.Pattern[bytes]
    """The text and everything after it. Its groups are the text, with `counts` also the counts of the prompt
    and the completion, with `thinks` also that of the reasoning: see the next three."""
    prompt: int
    completion: int
    reasoning: int
    counts: bool
    thinks: bool
    new_head: bytes
    new_rest: bytes | None
    """Everything after the text; None: as the engine sent it."""
    resumable: bool
    """The text belongs to the answer, as opposed to its reasoning."""


def learn(
    data: bytes, chunk: dict[str, Any], rewrite: Callable[[dict[str, Any]], bytes], *, keeps_usage: bool
) -> PlainEvent | None:
    """The shape of an event, whose `data` was parsed as `chunk`; None if events like it must be parsed.

    `chunk` has one choice, which has not finished. `rewrite` serializes a chunk for the client, and may
    change it; `keeps_usage`: the client gets the counts.
    """
    choice = chunk["choices"][0]
    texts = choice["delta"] if "delta" in choice else {"text": choice["text"]}
    present = [(name, value) for name, value in texts.items() if value is not None]
    others = (value for name, value in choice.items() if name not in {"index", "delta", "text"})
    if len(present) != 1 or any(value is not None for value in others):
        return None
    name, text = present[0]
    if type(text) is not str or not (text or name in _CONTENT):
        return None  # an empty text other than content does not decide yet whether the answer is resumable
    try:
        parts = b"data: %b\n\n" % orjson.dumps(_marked(chunk, name))
    except orjson.JSONEncodeError:
        return None
    head, first, *rest = parts.split(b"\0")
    new_head, *new_rest = rewrite(_marked(chunk, name)).split(b"\0")
    if first != b"text" or (new_rest != [first, *rest] if keeps_usage else new_rest[:-1] != [first]):
        return None
    pattern = _pattern((first, *rest))
    places = {name: number - 1 for name, number in pattern.groupindex.items()}
    shape = PlainEvent(
        head=head,
        rest=pattern,
        prompt=places.get("prompt", -1),
        completion=places.get("completion", -1),
        reasoning=places.get("reasoning", -1),
        counts=b"prompt" in rest and b"completion" in rest,
        thinks=b"reasoning" in rest,
        new_head=new_head,
        new_rest=None if keeps_usage else new_rest[-1],
        resumable=name in _CONTENT,
    )
    event = b"data: %b\n\n" % data
    return shape if event.startswith(head) and shape.rest.fullmatch(event, len(head)) else None


def _marked(chunk: dict[str, Any], name: str) -> dict[str, Any]:
    """A copy of `chunk` with marks, between null bytes, which JSON does not contain: in place of the text,
    `name`, and of the integers in `usage`."""
    choice = dict(chunk["choices"][0])
    text = orjson.Fragment(b'"\0text\0"')
    if "delta" in choice:
        choice["delta"] = choice["delta"] | {name: text}
    else:
        choice["text"] = text
    marked = chunk | {"choices": [choice]}
    usage = chunk.get("usage")
    if type(usage) is dict:
        marked["usage"] = {key: _mark(value, (key,)) for key, value in usage.items()}
    return marked


def _mark(value: Any, place: tuple[str, ...]) -> Any:
    if type(value) is dict and len(place) == 1:  # details of the counts
        return {key: _mark(v, (*place, key)) for key, v in value.items()}
    return orjson.Fragment(f"\0{_COUNTS.get(place, 'integer')}\0") if type(value) is int else value


@lru_cache(maxsize=256)
def _pattern(parts: tuple[bytes, ...]) -> re.Pattern[bytes]:
    """`parts`: marks and what is between them, alternately."""
    return re.compile(
        b"".join(re.escape(part) if number % 2 else _VALUES[part] for number, part in enumerate(parts))
    )

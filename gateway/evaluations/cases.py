"""Reads held-out sets. Pure.

A set is JSON Lines. Each line is one case, and all have the same format:

    {"messages": [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}]}
    {"prompt": "…", "completion": "…"}
    {"input": "…", "expected": "…"}

The last message, if the assistant's, is the expected answer and is not sent. Other fields are ignored, except
`tools` beside `messages`, which are sent.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import orjson

MOST_BYTES: Final = 16 * 1024 * 1024
"""Size limit of a set."""
MOST_CASES: Final = 10_000
MOST_ERRORS: Final = 5
"""Bad lines that are reported."""
_FORMATS: Final = {"messages": "messages", "prompt": "completion", "input": "expected"}
"""The field that tells a format → the field of its expected answer."""


class BadDataError(Exception):
    """The message names lines."""


@dataclass(frozen=True, slots=True)
class Case:
    line: int
    """Line number in the set, from 1."""
    request: dict[str, Any]
    """What is sent, besides the model and parameters: `messages` (and `tools`), or `prompt`."""
    expected: str | None

    @property
    def chat(self) -> bool:
        return "messages" in self.request

    @property
    def question(self) -> str:
        """The question, as people and the judge see it."""
        if not self.chat:
            return str(self.request["prompt"])
        messages = self.request["messages"]
        if len(messages) == 1 and type(messages[0].get("content")) is str:
            return str(messages[0]["content"])
        return orjson.dumps(messages).decode()


@dataclass(slots=True)
class _Reading:
    format: str = ""
    cases: list[Case] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


def read_cases(data: bytes, *, references: bool, limit: int | None = None) -> list[Case]:
    """The set's cases, at most `limit`; lines after them are not looked at. `references`: each needs its
    expected answer. Raises BadDataError."""
    if len(data) > MOST_BYTES:
        raise BadDataError(f"The data has {len(data):,} bytes; at most {MOST_BYTES:,} are evaluated.")
    reading = _Reading()
    for number, raw in enumerate(data.split(b"\n"), 1):
        line = raw.strip()
        if not line:
            continue
        if limit is not None and len(reading.cases) >= limit:
            break
        if len(reading.cases) >= MOST_CASES:
            raise BadDataError(f"The data has more than {MOST_CASES:,} cases. Use `limit`, or fewer lines.")
        try:
            reading.cases.append(_case(number, line, reading, references=references))
        except BadDataError as bad:
            reading.errors.append(f"line {number:,}: {bad}")
            if len(reading.errors) >= MOST_ERRORS:
                break
    if reading.errors:
        raise BadDataError("The data cannot be used: " + "; ".join(reading.errors) + ".")
    if not reading.cases:
        raise BadDataError("The data has no cases.")
    return reading.cases


def _case(number: int, line: bytes, reading: _Reading, *, references: bool) -> Case:
    try:
        row = orjson.loads(line.removeprefix(b"\xef\xbb\xbf"))
    except orjson.JSONDecodeError as error:
        raise BadDataError(f"not valid JSON in UTF-8 ({error})") from None
    if type(row) is not dict:
        raise BadDataError("not a JSON object")
    formats = [name for name in _FORMATS if name in row]
    if len(formats) != 1:
        raise BadDataError(f"needs exactly one of {', '.join(f'`{name}`' for name in _FORMATS)}")
    kind = formats[0]
    reading.format = reading.format or kind
    if kind != reading.format:
        raise BadDataError(f"has `{kind}`, and earlier lines `{reading.format}`: use one format")
    if kind == "messages":
        request, expected = _chat(row)
    else:
        text = _text(row, kind)
        request = {"prompt": text} if kind == "prompt" else {"messages": [{"role": "user", "content": text}]}
        reference = _FORMATS[kind]
        expected = _text(row, reference, empty=True) if row.get(reference) is not None else None
    if references and not expected:
        raise BadDataError("has no expected answer, which this metric needs")
    return Case(number, request, expected)


def _chat(row: dict[str, Any]) -> tuple[dict[str, Any], str | None]:
    messages = row["messages"]
    if type(messages) is not list or not messages or not all(type(m) is dict for m in messages):
        raise BadDataError("`messages` must be a list of messages")
    for message in messages:
        if type(message.get("role")) is not str:
            raise BadDataError("a message has no `role`")
    expected = None
    if messages[-1]["role"] == "assistant":
        expected = messages[-1].get("content")
        if type(expected) is not str:
            raise BadDataError("the content of the last message, the expected answer, must be text")
        messages = messages[:-1]
        if not messages:
            raise BadDataError("there is no message before the expected answer")
    return {name: row[name] for name in ("tools",) if name in row} | {"messages": messages}, expected


def _text(row: dict[str, Any], name: str, *, empty: bool = False) -> str:
    value = row[name]
    if type(value) is not str or not (value or empty):
        raise BadDataError(f"`{name}` must be text")
    return value

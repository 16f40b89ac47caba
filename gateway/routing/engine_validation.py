"""Reads pydantic's errors in engines' error messages: which field is wrong, in the API's own names.

A value of a union is tried as each of its kinds, and each failure is listed. Only one of them concerns the
kind that the client meant.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

_REPORTED = re.compile(
    r"""'type':\ '(?P<type>\w+)',\ 'loc':\ (?:'(?P<loc>[^']*)'|\((?P<parts>[^)]*)\)),?\ .*?
    'msg':\ (?P<quote>['"])(?P<msg>.*?)(?P=quote)(?:,\ '|\})""",
    re.DOTALL | re.VERBOSE,
)
"""Each error as vLLM reports it: `{'type': …, 'loc': …, 'msg': …, 'input': …}`."""
_PRINTED = re.compile(r"^(?P<loc>\S[^\n]*)\n +(?P<msg>[^\n]*?)(?: \[type=(?P<type>\w+)|$)", re.MULTILINE)
"""Each error as pydantic prints it after `2 validation errors for …`."""
_ERRORS_FOLLOW = re.compile(r"\d+ validation errors? for [^\n]*\n")

_FIELD = re.compile(r"[a-z_][\w.\[\]]{0,99}", re.ASCII)
_SEGMENT = re.compile(r"(?:[a-z_]\w*|\d+)(?:\[\d+\])*", re.ASCII)
"""A name of the API, or an index."""
_TYPES = frozenset({"str", "int", "float", "bool", "list", "dict", "none", "generator", "union", "nullable"})
"""Kinds of a union's values that look like names of the API."""
_CLASS = re.compile(r"[A-Z]\w+", re.ASCII)
_BRACKETS = re.compile(r"\[(?!\d+\])[^.]*|\([^.]*")
_DISCRIMINATOR = re.compile(r"\.(?:role|type)$")


@dataclass(frozen=True, slots=True)
class FieldError:
    kind: str
    """Pydantic's: `string_type`, `missing`."""
    path: str
    """With the engine's names of the union's kinds."""
    message: str

    @property
    def object_kind(self) -> str:
        """The path as far as the class as which an object was tried; empty: there is none."""
        segments = _segments(self.path)
        last = max((n for n, segment in enumerate(segments) if _CLASS.fullmatch(segment)), default=-1)
        return ".".join(segments[: last + 1])


def field_error(text: str) -> FieldError | None:
    """The error that concerns what the client meant; None: the message has none of pydantic's."""
    errors = [
        FieldError(error["type"], error["loc"] or ".".join(re.findall(r"\w+", error["parts"])), error["msg"])
        for error in _REPORTED.finditer(text)
    ]
    if not errors and (start := _ERRORS_FOLLOW.search(text)):
        errors = [
            FieldError(error["type"] or "", error["loc"], error["msg"])
            for error in _PRINTED.finditer(text, start.end())
        ]
    if not errors:
        return None
    others = {e.object_kind for e in errors if e.kind == "literal_error" and _DISCRIMINATOR.search(e.path)}
    errors = [_completed(e) for e in errors]
    first = next((e for e in errors if e.object_kind not in others), errors[0])
    same_field = [e for e in errors if field_name(e.path) == field_name(first.path)]
    return min(same_field, key=lambda e: (e.object_kind in others, e.kind.endswith("_type")))


def _completed(error: FieldError) -> FieldError:
    """VLLM takes the field `arguments` for one of pydantic's own names, and leaves it out."""
    if error.kind == "string_type" and error.path.endswith("FunctionToolCallParam.function"):
        return replace(error, path=f"{error.path}.arguments")
    return error


def field_name(path: str) -> str | None:
    """The client's name of a field, without the engine's classes and types; None: the path names none."""
    segments = [segment for segment in _segments(path) if _SEGMENT.fullmatch(segment)]
    while segments and (segments[0] == "body" or segments[0].isdigit()):  # an index of an unknown list
        del segments[0]
    name = ".".join(segment for segment in segments if segment not in _TYPES)
    return name if _FIELD.fullmatch(name) else None


def _segments(path: str) -> list[str]:
    """`list[union[A,B]]` is the segment `list`."""
    return _BRACKETS.sub("", path[:500]).split(".")

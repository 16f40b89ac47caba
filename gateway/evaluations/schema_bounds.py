"""Bounds the work that a JSON Schema can cause. Pure.

`allOf` of two references to a schema that does the same is twice the work at each level: thirty lines of
schema keep a validator busy for years. So a schema is refused if it refers to itself, or is too large once
its references are written out; then its work is bounded by its size times the answer's. Regular expressions
are compiled into programs of megabytes, so their number is bounded, too.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple
from urllib.parse import unquote

MOST_NODES: Final = 20_000
"""Objects and lists, with references written out."""
MOST_EXPRESSIONS: Final = 64
"""Likewise."""
_ELSEWHERE: Final = (
    "$dynamicRef",
    "$recursiveRef",
    "$dynamicAnchor",
    "$recursiveAnchor",
    "$anchor",
    "$id",
    "id",
)
"""Keywords that lead a reference elsewhere than a JSON pointer does."""


class BadSchemaError(Exception):
    """Why a schema must not be used."""


class Size(NamedTuple):
    """The size of a schema with its references expanded."""

    parts: int
    expressions: int

    def plus(self, other: Size) -> Size:
        return Size(self.parts + other.parts, self.expressions + other.expressions)


def size_of(schema: Any) -> Size:
    """Raises BadSchemaError for a schema that must not be used."""
    try:
        size = _Sizes(schema).of(schema)
    except RecursionError:
        raise BadSchemaError("it is nested too deeply") from None
    for count, most, what in (
        (size.parts, MOST_NODES, "parts"),
        (size.expressions, MOST_EXPRESSIONS, "regular expressions"),
    ):
        if count > most:
            raise BadSchemaError(f"it has more than {most:,} {what}, references written out")
    return size


class _Sizes:
    def __init__(self, root: Any) -> None:
        self._root = root
        # Mutable: reference → size of what it refers to; None while that is being counted.
        self._known: dict[str, Size | None] = {}

    def of(self, node: Any) -> Size:
        size = Size(1, 0)
        if type(node) is list:
            for value in node:
                size = size.plus(self.of(value))
            return size
        if type(node) is not dict:
            return Size(0, 0)
        for name, value in node.items():
            if name == "$ref" and type(value) is str:
                size = size.plus(self._reference(value))
            elif name in _ELSEWHERE and type(value) is str:
                raise BadSchemaError(f"`{name}` is not supported")
            else:
                size = size.plus(self.of(value))
        patterns = node.get("patternProperties")
        expressions = type(node.get("pattern")) is str, len(patterns) if type(patterns) is dict else 0
        return size.plus(Size(0, sum(expressions)))

    def _reference(self, text: str) -> Size:
        if text in self._known:
            known = self._known[text]
            if known is None:
                raise BadSchemaError(f"it refers to itself ({text[:100]})")
            return known
        self._known[text] = None
        size = self._known[text] = self.of(self._target(text))
        return size

    def _target(self, text: str) -> Any:
        pointer = unquote(text)
        if pointer != "#" and not pointer.startswith("#/"):
            raise BadSchemaError(f"`$ref` must be a pointer within it, and not {text[:100]!r}")
        node = self._root
        for escaped in pointer.split("/")[1:]:
            part = escaped.replace("~1", "/").replace("~0", "~")
            if type(node) is dict and part in node:
                node = node[part]
            elif type(node) is list and part.isdecimal() and int(part) < len(node):
                node = node[int(part)]
            else:
                raise BadSchemaError(f"`$ref` {text[:100]!r} leads nowhere")
        return node

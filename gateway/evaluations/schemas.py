"""How much work a JSON Schema can be. Pure.

`allOf` of two references to a schema that does the same is twice the work at each level: thirty lines of
schema keep a validator busy for years. So a schema is refused if it refers to itself, or is too large once
its references are written out; then its work is bounded by its size times the answer's.
"""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import unquote

MOST_NODES: Final = 20_000
"""Objects and lists, with references written out."""
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


def objection(schema: Any) -> str | None:
    """Why a schema must not be used; None: it may."""
    try:
        size = _Sizes(schema).of(schema)
    except _BadReferenceError as error:
        return str(error)
    except RecursionError:
        return "it is nested too deeply"
    return f"it has more than {MOST_NODES:,} parts, references written out" if size > MOST_NODES else None


class _BadReferenceError(Exception):
    pass


class _Sizes:
    def __init__(self, root: Any) -> None:
        self._root = root
        # Mutable: reference → size of what it refers to; None while that is being counted.
        self._known: dict[str, int | None] = {}

    def of(self, node: Any) -> int:
        if type(node) is list:
            return 1 + sum(map(self.of, node))
        if type(node) is not dict:
            return 0
        size = 1
        for name, value in node.items():
            if name == "$ref" and type(value) is str:
                size += self._reference(value)
            elif name in _ELSEWHERE and type(value) is str:
                raise _BadReferenceError(f"`{name}` is not supported")
            else:
                size += self.of(value)
        return size

    def _reference(self, text: str) -> int:
        if text in self._known:
            known = self._known[text]
            if known is None:
                raise _BadReferenceError(f"it refers to itself ({text[:100]})")
            return known
        self._known[text] = None
        found = self._known[text] = self.of(self._target(text))
        return found

    def _target(self, text: str) -> Any:
        pointer = unquote(text)
        if pointer != "#" and not pointer.startswith("#/"):
            raise _BadReferenceError(f"`$ref` must be a pointer within it, and not {text[:100]!r}")
        node = self._root
        for escaped in pointer.split("/")[1:]:
            part = escaped.replace("~1", "/").replace("~0", "~")
            if type(node) is dict and part in node:
                node = node[part]
            elif type(node) is list and part.isdecimal() and int(part) < len(node):
                node = node[int(part)]
            else:
                raise _BadReferenceError(f"`$ref` {text[:100]!r} leads nowhere")
        return node

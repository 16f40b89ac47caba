"""JSON schemas, from which an engine makes grammars: what they may cost in one request.

Measured on vLLM 0.32 (xgrammar 0.2, a vocabulary of 128,000, one busy core; a GPU host is several times
faster): a schema of 1,000 properties takes 0.4 s, one of 64 KiB 0.5 s; each distinct `maxLength` 1 s, each
e-mail address 0.1 s; `minProperties` over 64 properties 0.3 s, over 300 more than 30 s. `maxItems` of a
million and nesting cost nothing: vLLM stops at 64 levels.
"""

from __future__ import annotations

from typing import Any

import orjson

from gateway.fields.patterns import objection
from gateway.fields.rule import Check, FieldReading, WrongError

MAX_DEPTH = 60
"""Levels; vLLM refuses the 65th."""
BOUNDS: dict[str, tuple[int, str]] = {
    "bytes": (64 * 1024, "bytes of schemas"),
    "nodes": (4000, "objects and lists"),
    "values": (4000, "list entries"),
    "lengths": (16, "`minLength` or `maxLength`"),
    "formats": (32, "`format` or `pattern`"),
    "expressions": (8192, "characters of expressions"),
    "counted": (64, "properties beside `minProperties` or `maxProperties`"),
}
"""Of what the engine compiles, in all schemas of a request together."""
PRINTED = {"bytes": 256 * 1024, "nodes": 32_000, "values": 32_000}
"""Of tools, which are printed by the template, and compiled only where a call is demanded: `compiled_tools`
then holds them to BOUNDS."""

_LENGTHS = ("minLength", "maxLength")
_FORMATS = ("format", "pattern")
_COUNTS = ("minProperties", "maxProperties")
_TOOLS = "tools "


def schema(*, printed: bool = False) -> Check:
    """Takes a schema, or one as a string, and returns the schema."""

    def check(value: Any, reading: FieldReading) -> Any:
        found = _Cost(reading, printed=printed)
        parsed = _parsed(value)
        found.walk(parsed)
        found.spend("bytes", len(orjson.dumps(parsed)))
        return parsed

    return check


def compiled_tools(reading: FieldReading) -> str:
    """Why the tools of this request cannot be compiled, as the end of '… must'; empty: they can."""
    for what, (most, of) in BOUNDS.items():
        if reading.spent.get(_TOOLS + what, 0) > most:
            return f"have at most {most:,} {of} in all where a call is demanded (`tool_choice`) or `strict`"
    return reading.objection


def _parsed(value: Any) -> dict[str, Any]:
    if type(value) is str:
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError:
            value = None
    if type(value) is not dict:
        raise WrongError("be a JSON schema: an object")
    return value


class _Cost:
    def __init__(self, reading: FieldReading, *, printed: bool) -> None:
        self._reading = reading
        self._printed = printed

    def spend(self, what: str, amount: int) -> None:
        key = _TOOLS + what if self._printed else what
        total = self._reading.spent[key] = self._reading.spent.get(key, 0) + amount
        most, of = BOUNDS[what]
        if self._printed:
            most = PRINTED.get(what, total)
        if total > most:
            raise WrongError(f"have at most {most:,} {of} in all")

    def walk(self, value: dict[str, Any]) -> None:
        level: list[Any] = [value]
        for _ in range(MAX_DEPTH):
            self.spend("nodes", len(level))
            level = [child for node in level for child in self._children(node) if type(child) in (dict, list)]
            if not level:
                return
        raise WrongError(f"nest at most {MAX_DEPTH} levels")

    def _children(self, node: Any) -> Any:
        if type(node) is list:
            self.spend("values", len(node))
            return node
        if any(_is_number(node.get(name)) for name in _LENGTHS):
            self.spend("lengths", 1)
        self.spend("formats", sum(type(node.get(name)) is str for name in _FORMATS))
        properties = node.get("properties")
        if type(properties) is dict and any(_is_number(node.get(name)) for name in _COUNTS):
            self.spend("counted", len(properties))
        self._expressions(node)
        return node.values()

    def _expressions(self, node: dict[str, Any]) -> None:
        pattern, patterns, ref = node.get("pattern"), node.get("patternProperties"), node.get("$ref")
        if type(ref) is str and not ref.startswith("#"):
            self._object("refer (`$ref`) to its own parts only, by `#…`")
        for one in (pattern, *(patterns if type(patterns) is dict else ())):
            if type(one) is str:
                self.spend("expressions", len(one))
                self._object(objection(one))

    def _object(self, reason: str) -> None:
        if reason and self._printed:
            self._reading.objection = reason
        elif reason:
            raise WrongError(reason)


def _is_number(value: Any) -> bool:
    return type(value) is int or type(value) is float

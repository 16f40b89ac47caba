"""Limits the cost of a request's JSON schemas, which the engine compiles into grammars.

Measured on vLLM 0.32 (xgrammar 0.2, a vocabulary of 128,000, one busy core; a GPU host is several times
faster): a schema of 1,000 properties takes 0.4 s, one of 64 KiB 0.5 s; each distinct `maxLength` 1 s, each
e-mail address 0.1 s; `minProperties` with 64 properties 0.3 s, with 300 more than 30 s. `maxItems` of a
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
    "expressions": (8192, "characters of regular expressions"),
    "counted": (64, "properties in objects with `minProperties` or `maxProperties`"),
}
"""For all schemas of a request together that the engine compiles."""
RENDERED = {"bytes": 256 * 1024, "nodes": 32_000, "values": 32_000}
"""For tools, which the template renders. Only tools that must be called are compiled, too; `compiled_tools`
then applies BOUNDS."""

_LENGTHS = ("minLength", "maxLength")
_FORMATS = ("format", "pattern")
_COUNTS = ("minProperties", "maxProperties")
_TOOLS = "tools "


def schema(*, rendered: bool = False) -> Check:
    """Accepts a schema, also as a string, and returns it as an object."""

    def check(value: Any, reading: FieldReading) -> Any:
        cost = _Cost(reading, rendered=rendered)
        parsed = _parsed(value)
        cost.walk(parsed)
        cost.spend("bytes", len(orjson.dumps(parsed)))
        return parsed

    return check


def compiled_tools(reading: FieldReading) -> str:
    """What prevents the request's tools from being compiled, as the end of '… must'; empty: nothing."""
    for what, (most, noun) in BOUNDS.items():
        if reading.spent.get(_TOOLS + what, 0) > most:
            return f"have at most {most:,} {noun} in total if a call is required (`tool_choice`) or `strict`"
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
    def __init__(self, reading: FieldReading, *, rendered: bool) -> None:
        self._reading = reading
        self._rendered = rendered

    def spend(self, what: str, amount: int) -> None:
        key = _TOOLS + what if self._rendered else what
        total = self._reading.spent[key] = self._reading.spent.get(key, 0) + amount
        most, noun = BOUNDS[what]
        if self._rendered:
            most = RENDERED.get(what, total)
        if total > most:
            raise WrongError(f"have at most {most:,} {noun} in total")

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
            self._object("use `$ref` only for its own parts (`#…`)")
        for expression in (pattern, *(patterns if type(patterns) is dict else ())):
            if type(expression) is str:
                self.spend("expressions", len(expression))
                if not self._refused_anyway():
                    self._object(objection(expression))

    def _refused_anyway(self) -> bool:
        """Whether checking the request's tools further would change nothing: they are not compiled."""
        spent = self._reading.spent.get(_TOOLS + "expressions", 0)
        return self._rendered and (bool(self._reading.objection) or spent > BOUNDS["expressions"][0])

    def _object(self, reason: str) -> None:
        if reason and self._rendered:
            self._reading.objection = reason
        elif reason:
            raise WrongError(reason)


def _is_number(value: Any) -> bool:
    return type(value) is int or type(value) is float

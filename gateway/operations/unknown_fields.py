"""Suggests the field that an unknown one was meant to be, from the JSON Schema of the document. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

Schema = Mapping[str, Any]
Location = Sequence[str | int]
"""A place in a document as pydantic gives it: field names, ids and indexes from the top."""

ANY: Final = "*"
"""Stands for each id and each index in a pattern."""
_DEPTH: Final = 3
"""How far below an object a field is looked for."""
_TYPED: Final = 0.85
"""Similarity from which on a name counts as misspelled."""
_SIMILAR: Final = 0.75


@dataclass(frozen=True, slots=True)
class UnknownField:
    allowed: tuple[str, ...]
    """The fields that the object has."""
    meant: str
    """The field that was probably meant: `limits.requests_per_minute`; empty if none is similar."""

    def __str__(self) -> str:
        return f"unknown field; did you mean {self.meant}?" if self.meant else "unknown field"

    def sentence(self, kind: str) -> str:
        """With all that there are: a `field` or a `parameter`."""
        question = f"; did you mean {self.meant}?" if self.meant else "."
        return f"unknown {kind}{question} {kind.capitalize()}s here: {', '.join(self.allowed) or 'none'}."


def unknown_field(root: Schema, location: Location) -> UnknownField:
    """`location` ends with the field that the schema does not have."""
    trail = [resolved(root, root), *_trail(root, location[:-1])]
    node = trail[-1]
    allowed = tuple(node.get("properties", ()))
    name = _plain(str(location[-1]))
    below = [(path, field) for path, field in _fields(root, node, _DEPTH) if len(path) > 1]
    above = [
        ((*(str(part) for part in location[:depth]), field), field)
        for depth in range(len(trail) - 2, -1, -1)
        for field in trail[depth].get("properties", ())
    ]
    own = [((field,), field) for field in allowed]
    elsewhere = [*below, *above]
    same = next((path for path, field in elsewhere if _plain(field) == name), ())
    meant = _closest(name, own, _TYPED) or same or _closest(name, [*own, *elsewhere], _SIMILAR)
    return UnknownField(allowed, ".".join(meant))


def pattern(root: Schema, location: Location) -> tuple[str, ...]:
    """The location with ids and indexes replaced: the same for the same field of all objects of a kind."""
    parts: list[str] = []
    node: Schema | None = resolved(root, root)
    for part in location:
        named = node is None or part in node.get("properties", ()) or _each(node) is None
        parts.append(str(part) if named else ANY)
        node = _inner(root, node, part)
    return tuple(parts)


def resolved(root: Schema, node: Schema) -> Schema:
    """What a node describes, unless it is null: references are followed."""
    while True:
        branches = [branch for branch in node.get("anyOf", ()) if branch.get("type") != "null"]
        if "$ref" in node:
            node = root["$defs"][node["$ref"].rpartition("/")[2]]
        elif len(branches) == 1:
            node = branches[0]
        else:
            return node


def _trail(root: Schema, location: Location) -> Iterator[Schema]:
    node: Schema | None = resolved(root, root)
    for part in location:
        node = _inner(root, node, part)
        yield node or {}


def _inner(root: Schema, node: Schema | None, part: str | int) -> Schema | None:
    if node is None:
        return None
    inner = node.get("properties", {}).get(part, _each(node))
    return None if inner is None else resolved(root, inner)


def _each(node: Schema) -> Schema | None:
    """The schema of each item of a list, or of each value of a mapping from ids."""
    if isinstance(node.get("items"), Mapping):
        return node["items"]  # type: ignore[no-any-return]  # JSON
    for values in (*node.get("patternProperties", {}).values(), node.get("additionalProperties")):
        if isinstance(values, Mapping):
            return values
    return None


def _fields(root: Schema, node: Schema, depth: int) -> Iterator[tuple[tuple[str, ...], str]]:
    """Fields below an object with their paths, the nearest first."""
    level: list[tuple[tuple[str, ...], Schema]] = [((), node)]
    for _ in range(depth):
        following: list[tuple[tuple[str, ...], Schema]] = []
        for path, parent in level:
            for name, inner in parent.get("properties", {}).items():
                yield (*path, name), name
                following.append(((*path, name), resolved(root, inner)))
            each = _each(parent)
            if each is not None:
                following.append(((*path, ANY), resolved(root, each)))
        level = following


def _closest(name: str, candidates: Sequence[tuple[tuple[str, ...], str]], cutoff: float) -> tuple[str, ...]:
    by_name: dict[str, tuple[str, ...]] = {}
    for path, field in candidates:
        by_name.setdefault(_plain(field), path)
    close = difflib.get_close_matches(name, by_name, n=1, cutoff=cutoff)
    return by_name[close[0]] if close else ()


def _plain(name: str) -> str:
    """`maxRank`, `max-rank` and `max_rank` are one name."""
    return name.replace("_", "").replace("-", "").lower()

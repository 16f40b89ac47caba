"""What is untyped in the API, and what is named vaguely: `python -m tests.tools.figures [PATH…]`.

`vague_names` is also what `tests/unit/test_names.py` checks.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

Json = dict[str, Any]

ROOT: Final = Path(__file__).parents[2]
PRODUCT: Final = ("adapters", "deploy", "florin_gateway.py", "gateway")
WORDS: Final = frozenset(
    ["found", "made", "said", "told", "wanted", "held", "whole", "one", "of", "at", "asked", "why"]
)
"""They fit everything, so they say nothing about what a variable holds."""
_AREAS: Final = re.compile("/(admin|finance)/v1")
_SAYS: Final = {"$ref", "type", "properties", "enum", "const"}


@dataclass(frozen=True, slots=True)
class VagueName:
    path: str
    line: int
    name: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.name}"


def sources(paths: Iterable[str]) -> dict[str, str]:
    """Path → text, of the Python files there."""
    starts = [ROOT / path for path in paths if (ROOT / path).exists()]
    files = (file for start in starts for file in (start.rglob("*.py") if start.is_dir() else [start]))
    return {str(file.relative_to(ROOT)): file.read_text() for file in sorted(files)}


def vague_names(path: str, text: str) -> Iterator[VagueName]:
    """Variables, loop targets and parameters with one of the words as their name. Fields of a class are read
    with the object's name before them, so they are not meant; nor are functions and methods, nor `found`
    beside `expected`, which is what every finding has."""
    if not re.search(rf"\b({'|'.join(WORDS)})\b", text):
        return
    tree = ast.parse(text)
    clear = {*_fields(tree), *_found_beside_expected(tree)}
    for node in ast.walk(tree):
        name = _bound(node)
        if name in WORDS and node not in clear:
            yield VagueName(path, getattr(node, "lineno", 0), name)


def _bound(node: ast.AST) -> str | None:
    match node:
        case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
            return name
        case ast.ExceptHandler(name=name) | ast.MatchAs(name=name) | ast.MatchStar(name=name):
            return name
    return None


def _fields(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for statement in node.body:
                if isinstance(statement, ast.AnnAssign):
                    yield statement.target
                elif isinstance(statement, ast.Assign):
                    yield from statement.targets


def _found_beside_expected(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.walk(tree):
        if isinstance(node, ast.arguments):
            named = {parameter.arg: parameter for parameter in (*node.args, *node.kwonlyargs)}
            if named.keys() >= {"found", "expected"}:
                yield named["found"]


def docstrings_that_begin_with_of(text: str) -> int:
    """How many docstrings, of fields too, begin with "Of" and name nothing that they are of."""
    return len(re.findall(r'^\s*r?"""Of ', text, re.MULTILINE))


def untyped_routes(description: Json) -> Iterator[str]:
    """Routes of whose answer an OpenAPI description says nothing."""
    for path, methods in description["paths"].items():
        for method, operation in methods.items():
            if _AREAS.match(path) and any(
                _undescribed(a) for s, a in operation["responses"].items() if s < "300"
            ):
                yield f"{method.upper()} {path}"


def _undescribed(answer: Json) -> bool:
    schema = answer.get("content", {}).get("application/json", {}).get("schema")
    return schema is not None and _anything(schema)


def _anything(schema: Json) -> bool:
    """Whether it is, or lists, what may hold anything."""
    inner = [*schema.get("anyOf", ()), *schema.get("prefixItems", ())]
    if schema.get("type") == "array":
        inner.append(schema.get("items", {}))
    if schema.get("type") == "object" and not schema.get("properties"):
        fields = [schema.get("additionalProperties"), *schema.get("patternProperties", {}).values()]
        inner += [field for field in fields if isinstance(field, dict)] or [{}]
    return any(map(_anything, inner)) if inner else not schema.keys() & _SAYS


def main() -> int:
    """Name what is vague below the given paths; without any, in the product, and its untyped routes."""
    names = (
        name for path, text in sources(sys.argv[1:] or PRODUCT).items() for name in vague_names(path, text)
    )
    print("\n".join(map(str, names)))
    if not sys.argv[1:]:
        from tests.tools.docs.http_api import openapi  # takes seconds

        print("\n".join(untyped_routes(openapi())))
    return 0


if __name__ == "__main__":
    sys.exit(main())

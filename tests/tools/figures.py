"""Figures of the source: what is untyped, what is named vaguely, how long it is.

    python -m tests.tools.figures [--json]

Run it by hand before and after a change that makes the code simpler. `vague_names` is also what
`tests/unit/test_names.py` checks.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
from collections import Counter, defaultdict
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
KINDS: Final = ("commands", "operations", "routes", "schemas")
"""What a room of the gateway has beside its model."""
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


def shared_basenames(paths: Iterable[str]) -> dict[str, int]:
    """File name → how many modules have it; packages' own `__init__` and `__main__` aside."""
    names = Counter(Path(path).name for path in paths)
    return {name: count for name, count in names.most_common() if count > 1 and not name.startswith("__")}


def nouns_in_several_rooms(paths: Iterable[str]) -> dict[str, int]:
    """File name → how many modules have it, if they lie in several rooms: what routes and commands of one room
    have the same name for is one noun."""
    rooms: defaultdict[str, set[str]] = defaultdict(set)
    for path in paths:
        *folders, name = path.removesuffix(".py").split("/")
        if name not in KINDS and not name.startswith("__"):
            rooms[name].add("/".join(folder for folder in folders if folder not in KINDS))
    return {name: len(places) for name, places in rooms.items() if len(places) > 1}


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


def _reads_answers(path: str) -> bool:
    return "console" in path.split("/") or "commands" in path.removesuffix(".py").split("/")


def figures() -> Json:
    from tests.tools.docs.http_api import openapi  # takes seconds; who only reads names does without

    product = sources(PRODUCT)
    tests = sources(["tests"])
    lines = {path: text.count("\n") for path, text in product.items()}
    names = [name for path, text in product.items() for name in vague_names(path, text)]
    basenames = shared_basenames(product)
    description = openapi()
    return {
        "untyped_routes": sum(1 for _ in untyped_routes(description)),
        "routes": sum(len(methods) for path, methods in description["paths"].items() if _AREAS.match(path)),
        "body_reads": sum(text.count('body["') for path, text in product.items() if _reads_answers(path)),
        "modules_that_share_a_basename": sum(basenames.values()),
        "nouns_in_several_rooms": sum(nouns_in_several_rooms(product).values()),
        "most_shared_basenames": dict(list(basenames.items())[:10]),
        "vague_names": len(names),
        "vague_names_per_10000_lines": round(len(names) / sum(lines.values()) * 10_000, 1),
        "vague_names_by_word": dict(Counter(name.name for name in names).most_common()),
        "vague_names_by_package": dict(
            Counter("/".join(name.path.split("/")[:2]) for name in names).most_common()
        ),
        "docstrings_that_begin_with_of": sum(map(docstrings_that_begin_with_of, product.values())),
        "product_lines": sum(lines.values()),
        "product_modules": len(product),
        "test_lines": sum(text.count("\n") for text in tests.values()),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="as one JSON object")
    parser.add_argument("--routes", action="store_true", help="list the untyped routes, and nothing else")
    parser.add_argument(
        "--names", nargs="+", metavar="PATH", help="list the vague names there, and nothing else"
    )
    options = parser.parse_args()
    if options.routes:
        from tests.tools.docs.http_api import openapi

        print("\n".join(untyped_routes(openapi())))
        return 0
    if options.names:
        for path, text in sources(options.names).items():
            for name in vague_names(path, text):
                print(name)
        return 0
    if options.json:
        print(json.dumps(figures(), indent=2))
        return 0
    for name, figure in figures().items():
        shown = (
            ", ".join(f"{key} {count}" for key, count in figure.items())
            if isinstance(figure, dict)
            else figure
        )
        print(f"{name.replace('_', ' ')}: {shown}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""docs/testing.md tells the truth: each test that it names exists and runs in `make test`, and nothing is left out.

Tests are looked up by their source: nothing is imported, so this knows those of engines and browsers too."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGE = (DOCS / "testing.md").read_text()
KINDS = "unit|contract|property|integration|field|browser|engine|tools"
NAMED = re.compile(rf"`(?:tests/)?((?:{KINDS})/[\w/]*test_\w+\.py)(?:::([\w:]+))?`")
LONG = "pytest.mark.long"


@cache
def in_file(path: Path) -> dict[str, bool]:
    """The tests of a file, and whether each runs only in the long form."""
    return _tests_of(ast.parse(path.read_text()), "", only_long=False) if path.exists() else {}


def _tests_of(within: ast.Module | ast.ClassDef, prefix: str, *, only_long: bool) -> dict[str, bool]:
    marks = [node.value for node in within.body if isinstance(node, ast.Assign) and _marks(node)]
    only_long = only_long or any(LONG in ast.unparse(mark) for mark in marks)
    names: dict[str, bool] = {}
    for node in within.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            long = only_long or any(LONG in ast.unparse(decorator) for decorator in node.decorator_list)
            if isinstance(node, ast.ClassDef):
                names |= _tests_of(node, f"{node.name}::", only_long=long)
            elif node.name.startswith("test_"):
                names[prefix + node.name] = long
    return names


def _marks(node: ast.Assign) -> bool:
    return any(isinstance(target, ast.Name) and target.id == "pytestmark" for target in node.targets)


def missing(text: str) -> list[str]:
    """What the text names, and is not there or not in the short form."""
    return [
        f"{file}::{name}"
        for file, name in NAMED.findall(text)
        if (in_file(ROOT / "tests" / file).get(name, True) if name else not (ROOT / "tests" / file).exists())
    ]


def rows(text: str) -> list[list[str]]:
    """The tables' rows, without their heads."""
    lines = re.findall(r"^\| (.+) \|$", text, re.MULTILINE)
    heads = {
        index + offset for index, line in enumerate(lines) if line.startswith("---") for offset in (-1, 0)
    }
    return [line.split(" | ") for index, line in enumerate(lines) if index not in heads]


def test_each_test_that_a_page_names_exists_and_runs_in_the_short_form():
    wrong = {path.name: missing(path.read_text()) for path in DOCS.rglob("*.md")}
    assert {page: names for page, names in wrong.items() if names} == {}


def test_each_promise_has_its_tests_or_says_why_not():
    promises = rows(PAGE)
    assert len(promises) > 150
    for promise, held_by in promises:
        parts = held_by.split("<br>")
        assert held_by.startswith("**no test**: ") or all(
            (match := NAMED.fullmatch(part)) and match[2] for part in parts
        ), promise
    names = [promise for promise, _ in promises]
    assert len(names) == len(set(names)), "a promise is listed once"


def test_each_threat_has_its_row():
    def named(text: str, heading: str) -> list[str]:
        section = re.split(r"^#+ ", text.partition(f"# {heading}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
        return [row[0] for row in rows(section)]

    threats = named((ROOT / "SECURITY.md").read_text(), "What is defended")
    assert len(threats) > 15
    assert named(PAGE, "What is defended") == threats


def test_each_page_is_named():
    """Those of one client are a table of their own in tests/engine/test_clients.py; reference pages are generated."""
    pages = {str(path.relative_to(DOCS)) for path in [*DOCS.glob("*.md"), *DOCS.glob("deployment/*.md")]}
    assert pages - {"index.md", "testing.md"} <= set(re.findall(r"\]\(([\w/-]+\.md)\)", PAGE))


def test_what_is_not_there_is_noticed():
    here = "unit/test_promises.py"
    assert missing(f"`{here}`, `{here}::test_each_page_is_named`") == []
    for name in (f"{here}::test_no_more", "unit/test_gone.py::test_it"):
        assert missing(f"| `tests/{name}` |") == [name]
    assert missing("`unit/test_gone.py`") == ["unit/test_gone.py::"]
    only_long = ast.parse("@pytest.mark.long\ndef test_a(): ...\nclass TestB:\n    def test_c(self): ...")
    assert _tests_of(only_long, "", only_long=False) == {"test_a": True, "TestB::test_c": False}
    of_a_module = ast.parse("pytestmark = [pytest.mark.long]\ndef test_a(): ...")
    assert _tests_of(of_a_module, "", only_long=False) == {"test_a": True}

"""The table of cases, from the docstrings of their files."""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path

HERE = Path(__file__).parent
TABLE = HERE / "README.md"
PLACES = (HERE, HERE.parent / "engine" / "field")
PARTS = ("Source", "Sent", "Right", "Why")
INTRODUCTION = """# Cases from the field

What people really sent, brought and ran, from public reports and files; each is a test. To add one, write
`tests/field/test_<case>.py`, or `tests/engine/field/test_<case>.py` if only a real engine can show it, with a docstring of
the same four parts, and run `python -m tests.field`.

| case | source | sent | right | why |
| --- | --- | --- | --- | --- |
"""


def cases() -> list[Path]:
    """The files of all cases, by name."""
    return sorted((path for place in PLACES for path in place.glob("test_*.py")), key=lambda path: path.name)


def parts(case: Path) -> dict[str, str]:
    """The parts of a case's docstring by their names; a part may have several lines, and ends at the next."""
    docstring = ast.get_docstring(ast.parse(case.read_text())) or ""
    pieces = re.split(rf"^({'|'.join(PARTS)}): ", docstring, flags=re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in zip(pieces[1::2], pieces[2::2], strict=True)}


def table() -> str:
    """The whole of README.md."""
    return INTRODUCTION + "".join(_row(case) for case in cases())


def _row(case: Path) -> str:
    cells = [parts(case)[name].replace("|", r"\|") for name in PARTS]
    link = f"[{case.stem.removeprefix('test_')}]({os.path.relpath(case, HERE)})"
    return f"| {' | '.join([link, *cells])} |\n"

"""The little Markdown that the reference pages need."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_PAGE = re.compile(r"\bdocs/([\w/-]+)\.md(#[\w-]+)?")


def document(title: str, *parts: str) -> str:
    return "\n\n".join((f"# {title}", *(part.strip() for part in parts))) + "\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = (head, ["---"] * len(head), *rows)
    return "\n".join(f"| {' | '.join(cell(c) for c in line)} |" for line in lines)


def cell(text: str) -> str:
    """On one line, with links to the pages of docs/ that it names."""
    return linked(" ".join(text.split()).replace("|", "\\|"))


def linked(text: str) -> str:
    """From a page in docs/reference/."""
    return _PAGE.sub(_link, text)


def code(text: object) -> str:
    return f"`{text}`"


def _link(match: re.Match[str]) -> str:
    name, anchor = match[1], match[2] or ""
    target = name.removeprefix("reference/") if name.startswith("reference/") else f"../{name}"
    return f"[{name.rpartition('/')[2].replace('-', ' ')}]({target}.md{anchor})"

"""`python -m tests.tools.docs`: write docs/reference/ anew. With `--check`: say which pages are not current."""

from __future__ import annotations

import sys

from tests.tools.docs.pages import DIRECTORY, PAGES


def write() -> int:
    DIRECTORY.mkdir(exist_ok=True)
    for old in DIRECTORY.iterdir():
        if old.name not in PAGES:
            old.unlink()
    for name, page in PAGES.items():
        (DIRECTORY / name).write_text(page())
    return 0


def check() -> int:
    stale = [name for name, page in PAGES.items() if (DIRECTORY / name).read_text() != page()]
    if stale:
        sys.stderr.write(f"Not current: {', '.join(stale)}. Run `python -m tests.tools.docs`.\n")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(check() if sys.argv[1:] == ["--check"] else write())

"""`python -m deploy.docs`: write docs/reference/ anew."""

from __future__ import annotations

from deploy.docs.pages import DIRECTORY, PAGES

if __name__ == "__main__":
    DIRECTORY.mkdir(exist_ok=True)
    for old in DIRECTORY.glob("*.md"):
        if old.name not in PAGES:
            old.unlink()
    for name, page in PAGES.items():
        (DIRECTORY / name).write_text(page())

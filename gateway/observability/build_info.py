"""Which build this is: the version, and the commit that it was made from.

A wheel has its commit in a file, which `deploy/build_hook.py` writes, and an image is made with a wheel. An
editable installation runs a checkout, and names the commit that was checked out when it was first asked.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Final

COMMIT_FILE: Final = "gateway/observability/commit.txt"
"""In a wheel or source archive."""
_ROOT: Final = Path(__file__).parents[2]
_SHOWN: Final = 12


@cache
def version() -> str:
    return version_of("florin-gateway")


@cache
def commit() -> str:
    """Empty if it is not known. A forked process has that of its parent, whatever is checked out now."""
    packed = _ROOT / COMMIT_FILE
    revision = packed.read_text().strip() if packed.is_file() else checked_out(_ROOT)
    return revision[:_SHOWN]


def build() -> str:
    """`0.1.0 (commit ab6b3dfd4c10)`"""
    return f"{version()} (commit {commit()})" if commit() else version()


def checked_out(root: Path) -> str:
    """The commit that is checked out in `root`; empty if there is none. Read from Git's files: Git may be
    missing, and refuses a checkout that belongs to another user than a service's."""
    try:
        git = root / ".git"
        if git.is_file():  # of a linked worktree
            git = root / git.read_text().removeprefix("gitdir:").strip()
        head = (git / "HEAD").read_text().strip()
        if not head.startswith("ref: "):
            return head
        ref = head.removeprefix("ref: ")
        common = git / (git / "commondir").read_text().strip() if (git / "commondir").is_file() else git
        if (common / ref).is_file():
            return (common / ref).read_text().strip()
        packed = (line.split() for line in (common / "packed-refs").read_text().splitlines())
        return next((entry[0] for entry in packed if entry[1:] == [ref]), "")
    except OSError:
        return ""

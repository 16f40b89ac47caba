"""The entry point of the `florin` command, in a module named like the distribution, so that no other has it.

Florin is an application with an environment of its own. Its packages have plain names: in a shared
environment, or through PYTHONPATH, Python may find another package under one of them, and the first import
would fail with an error that explains nothing. So `main` checks before it imports anything of Florin.
"""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from pathlib import Path

PACKAGES = ("adapters", "deploy", "gateway")
_HOME = Path(__file__).resolve().parent


def shadowed() -> str:
    """Which of Florin's packages is shadowed by another, and how to fix it; empty: none."""
    for name in PACKAGES:
        spec = PathFinder.find_spec(name)
        location = Path(spec.origin).resolve() if spec and spec.origin else None
        if location != _HOME / name / "__init__.py":
            where = f"at {location}" if location else "nowhere"
            return (
                f"Florin's package {name!r} belongs at {_HOME / name}, but Python finds {name!r} {where}. "
                "Install Florin in an environment of its own (uv tool install florin-gateway, pipx, or a "
                "container), and keep other packages of that name off PYTHONPATH."
            )
    return ""


def main() -> None:
    if wrong := shadowed():
        sys.exit(f"florin: {wrong}")
    from gateway.cli import main as florin  # noqa: PLC0415  # nothing of Florin before the check

    florin()


if __name__ == "__main__":
    main()

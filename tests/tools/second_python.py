"""Prints the interpreter of an environment of another Python, with the locked packages: for `make check`.

It is built once in the user's cache. Prints nothing if no other Python from 3.11 on is installed.
"""

from __future__ import annotations

import subprocess
import sys
from itertools import islice
from pathlib import Path

from deploy.demo.cache import built, digest
from deploy.demo.pythons import pythons

OLDEST = 11
LOCK = Path(__file__).parents[2] / "requirements.lock"


def main() -> int:
    others = list(islice(pythons(OLDEST), 1, None))
    if not others:
        return 0
    python = others[0] if sys.version_info[1] == OLDEST else others[-1]  # the one furthest from this one
    pip = ["bin/python", "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--require-hashes"]

    def build(directory: Path) -> None:
        subprocess.run([python, "-m", "venv", str(directory)], check=True)  # found above
        subprocess.run([*pip, "-r", str(LOCK)], cwd=directory, check=True, stdout=sys.stderr)  # its own

    print(built(f"second-python-{digest(LOCK.read_bytes(), python)}", build) / "bin" / "python")  # noqa: T201  # its output
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Environments of the clients of docs/clients: `python -m tests.tools.clients.environments` builds them.

They are no part of Florin's own environment: their packages conflict with each other's. Each is built once,
in the user's cache, under a name with the hash of its requirements.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from deploy.demo.cache import built, digest
from tests.tools.npm import NpmUnavailableError, npm_environment

_HERE = Path(__file__).parent
PYTHON = ("python", "llama-index")
"""The Python environments, each with a lock file of its name."""


class ClientsUnavailableError(Exception):
    """A client cannot be installed here; the message says why."""


def python_environment(name: str) -> Path:
    """The directory of a virtual environment, built if necessary. Raises ClientsUnavailableError."""
    lock = _HERE / f"{name}.txt"

    def install(directory: Path) -> None:
        _run([sys.executable, "-m", "venv", str(directory)])
        pip = [str(directory / "bin" / "python"), "-m", "pip", "install", "-q", "--no-deps"]
        _run([*pip, "--disable-pip-version-check", "--require-hashes", "-r", str(lock)])

    return built(f"clients-{name}-{digest(lock.read_bytes(), sys.version)}", install)


def node_environment() -> Path:
    """A directory with `node_modules`, built if necessary. Raises ClientsUnavailableError."""
    try:
        return npm_environment("clients-node", _HERE / "node")
    except NpmUnavailableError as error:
        raise ClientsUnavailableError(str(error)) from error


def newest_environment(install: str, place: Path) -> Path:
    """A new environment in `place`, in which a page's own command (`pip install openai`) has installed what
    it installs today: a directory with `bin` or `node_modules`. Raises ClientsUnavailableError."""
    installer, *words = install.split()
    if installer == "pip":
        _run([sys.executable, "-m", "venv", str(place)])
        _run([str(place / "bin" / "python"), "-m", "pip", "-q", "--disable-pip-version-check", *words])
    else:
        place.mkdir()
        (place / "package.json").write_text('{"private": true, "type": "module"}')
        _run([installer, *words, "--no-audit", "--no-fund", "--ignore-scripts"], place)
    return place


def _run(command: list[str], place: Path | None = None) -> None:
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)  # our own
    if done.returncode:
        raise ClientsUnavailableError(f"{' '.join(command[:4])} failed: {done.stderr[-800:]}")


def main() -> int:
    for name in PYTHON:
        print(python_environment(name))  # noqa: T201  # its output
    print(node_environment())  # noqa: T201  # its output
    return 0


if __name__ == "__main__":
    sys.exit(main())

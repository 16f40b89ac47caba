"""Packages from npm that only tests use: pinned by a lock file, and kept in the user's cache."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from deploy.demo.cache import built, digest

_FILES = ("package.json", "package-lock.json")


class NpmUnavailableError(Exception):
    """The packages cannot be installed here; the message says why."""


def npm_environment(name: str, recipe: Path) -> Path:
    """A directory with the `node_modules` of the folder `recipe`, installed if necessary. Raises
    NpmUnavailableError."""
    for tool in ("node", "npm"):
        if shutil.which(tool) is None:
            raise NpmUnavailableError(f"{tool} is not installed.")

    def install(directory: Path) -> None:
        for file in _FILES:
            shutil.copy(recipe / file, directory)
        command = ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"]
        done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)  # our own
        if done.returncode:
            raise NpmUnavailableError(f"npm ci failed: {done.stderr[-800:]}")

    return built(f"{name}-{digest(*((recipe / file).read_bytes() for file in _FILES))}", install)

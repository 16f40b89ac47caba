"""Finds the Python interpreters of this machine, for environments apart from Florin's own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

NEWEST = 14


def pythons(oldest: int, newest: int = NEWEST) -> Iterator[str]:
    """A Python of each version from 3.`oldest` to 3.`newest` that can make environments here: our own first,
    then from the newest on."""
    versions = set()
    for candidate in _candidates(newest):
        probe = [candidate, "-c", "import ensurepip, sys; print(sys.version_info[1])"]
        with suppress(OSError):
            probed = subprocess.run(probe, capture_output=True, text=True, check=False)  # noqa: S603  # an interpreter
            version = int(probed.stdout) if probed.returncode == 0 else 0
            if oldest <= version <= newest and version not in versions:
                versions.add(version)
                yield candidate


def _candidates(newest: int) -> Iterator[str]:
    # `sys.executable` may belong to an environment itself, and only its base installation has ensurepip.
    base = Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info[1]}"
    yield str(base if base.exists() else sys.executable)
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    for minor in range(newest, 10, -1):
        yield from filter(None, [shutil.which(f"python3.{minor}")])
        yield from sorted(map(str, pyenv.glob(f"versions/3.{minor}.*/bin/python")), reverse=True)

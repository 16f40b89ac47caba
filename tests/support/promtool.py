"""Where promtool is, or how it is brought: Debian's package `prometheus` carries it, and unpacking a package
needs no rights. It is kept in the user's cache."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from deploy.demo.cache import cache_home

PACKAGE = "prometheus"
_SECONDS = 120


class NoPromtoolError(Exception):
    """It is not here, and cannot be brought; the message says why and what to do."""


def promtool() -> str:
    """Its path. Raises NoPromtoolError."""
    found = shutil.which("promtool")
    if found:
        return found
    kept = cache_home() / "promtool"
    if not kept.is_file():
        _bring(kept)
    return str(kept)


def _bring(kept: Path) -> None:
    if not (shutil.which("apt-get") and shutil.which("dpkg")):
        raise NoPromtoolError("promtool is not installed; it comes with Prometheus.")
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept.parent) as name:
        work = Path(name)
        try:
            if not _download(work):
                _run(work, "apt-get", "update")  # a machine that is new knows of no package
                _download(work)
            [package] = work.glob("*.deb")
            _run(work, "dpkg", "-x", str(package), "unpacked")
        except (subprocess.SubprocessError, ValueError) as error:
            raise NoPromtoolError(
                f"promtool is not installed, and Debian's package {PACKAGE} cannot be had ({error}): "
                f"apt-get install {PACKAGE}."
            ) from error
        # Whole or not at all: tests run beside each other.
        (work / "unpacked" / "usr" / "bin" / "promtool").replace(kept)


def _download(work: Path) -> bool:
    """As the user who may write there, whoever apt would rather be."""
    try:
        _run(work, "apt-get", "-o", "APT::Sandbox::User=root", "download", PACKAGE)
    except subprocess.CalledProcessError:
        return False
    return True


def _run(work: Path, *command: str) -> None:
    subprocess.run(
        command, cwd=work, check=True, timeout=_SECONDS, stdin=subprocess.DEVNULL, capture_output=True
    )

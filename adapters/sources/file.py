"""Adapters from a directory of this host."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote, urlsplit

from adapters.findings import Findings, shown
from adapters.validate import FILES, check_files


def fetch(uri: str, destination: Path, *, max_bytes: int, findings: Findings) -> None:
    """Copies the two files, after the checks that need the original directory (links, pickles, sizes).

    What is copied is checked again where it lies, so nothing hangs on the original staying as it is.
    """
    directory = _directory(uri)
    if directory is None:
        findings.add(
            "source_unsupported",
            "The source does not name a directory of this host.",
            found=shown(uri),
            expected="an absolute directory path, or file:// and such a path",
        )
        return
    check_files(directory, max_bytes=max_bytes, findings=findings)
    if findings:
        return
    for name in FILES:
        try:
            source = _open((directory / name).resolve(strict=True), max_bytes)
        except OSError as error:
            findings.add(
                "unreadable", f"{name} cannot be read.", found=shown(str(error)), expected="a readable file"
            )
            return
        with source, (destination / name).open("xb") as copy:
            shutil.copyfileobj(source, copy, 1024 * 1024)


def _directory(uri: str) -> Path | None:
    if uri.startswith("file:"):
        parts = urlsplit(uri)
        if parts.netloc not in ("", "localhost") or parts.query or parts.fragment:
            return None
        uri = unquote(parts.path)
    return Path(uri) if uri.startswith("/") and "\0" not in uri else None


def _open(path: Path, max_bytes: int) -> BinaryIO:
    """Follows no link put there since the checks, waits at no pipe, and lets no file outgrow the limit."""
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb")
    status = os.fstat(file.fileno())
    if stat.S_ISREG(status.st_mode) and status.st_size <= max_bytes:
        return file
    file.close()
    raise OSError(f"{path} changed while it was being registered")

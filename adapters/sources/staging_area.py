"""Receives an adapter's files: known names only, within their size limits, chunk by chunk."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from adapters.checks.file_kinds import FILES, limit_of
from adapters.checks.findings import Findings, shown
from adapters.sources.public_uri import public

_SPARE = 64 * 1024 * 1024
"""Bytes of disk space that a download must leave free."""


_BESIDE = 64 * 1024 * 1024
"""Bytes allowed for an archive's overhead, texts and tokenizer files."""


def archive_limit(max_bytes: int) -> int:
    """Maximum size of an archive of a version of at most `max_bytes`."""
    return max_bytes + _BESIDE


class SourceRefusedError(Exception):
    """Aborts a fetch; reported as a finding."""

    def __init__(self, code: str, message: str, *, found: str, expected: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.found = found
        self.expected = expected

    def add_to(self, findings: Findings) -> None:
        findings.add(self.code, self.message, found=self.found, expected=self.expected)


def malformed(uri: str, kind: str, expected: str) -> SourceRefusedError:
    """`kind`: what `uri` is not, "a valid URL"."""
    return SourceRefusedError(
        "source_unsupported", f"The source is not {kind}.", found=shown(public(uri)), expected=expected
    )


class StagingArea:
    """An initially empty directory for the known files of one adapter, at most `max_bytes` in total."""

    def __init__(self, directory: Path, max_bytes: int) -> None:
        self.directory = directory
        self.max_bytes = max_bytes
        self._taken = 0  # mutable: bytes of the two published files

    def limit(self, name: str) -> int:
        """Maximum size of the known file `name`, given what is already here."""
        return limit_of(name, self.max_bytes - self._taken)

    def write(self, name: str, chunks: Iterable[bytes], *, packed: int | None = None) -> int:
        """Write a file and return its size. `packed`: size of the archive it comes from. Raises
        SourceRefusedError above the limit."""
        limit, size = self.limit(name), 0
        with (self.directory / name).open("xb") as file:
            for chunk in chunks:
                size += len(chunk)
                if size > limit:
                    raise too_much(name, size, limit, packed)
                file.write(chunk)
        self.took(name, size)
        return size

    def took(self, name: str, size: int) -> None:
        """Record that `name` was written with `size` bytes."""
        if name in FILES:
            self._taken += size

    def clear(self) -> None:
        for path in self.directory.iterdir():
            path.unlink()
        self._taken = 0


def too_much(what: str, size: int, limit: int, packed: int | None = None) -> SourceRefusedError:
    if packed is not None and size > 100 * packed:
        return SourceRefusedError(
            "archive_bomb",
            f"{what} expands far beyond the limit.",
            found=f"at least {size} bytes from {packed}",
            expected=f"at most {limit} bytes",
        )
    return SourceRefusedError(
        "too_large",
        f"{what} is too large.",
        found=f"at least {size} bytes",
        expected=f"at most {limit} bytes",
    )


def check_space(directory: Path, size: int) -> None:
    """Raises OSError (ENOSPC), with a text for operators, if the disk of `directory` lacks space for `size`
    more bytes."""
    free = shutil.disk_usage(directory).free
    if free < size + _SPARE:
        raise OSError(
            errno.ENOSPC,
            f"{os.strerror(errno.ENOSPC)}: {_mib(size)} are needed, {_mib(_SPARE)} must stay free, and "
            f"{_mib(free)} are free",
            str(directory),
        )


def _mib(size: int) -> str:
    return f"{size / (1 << 20):,.1f} MiB"

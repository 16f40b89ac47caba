"""Uploads: an archive unchanged, or a directory packed into a tar stream while it is sent.

Nothing is written to disk, and only one piece of a file is in memory. The size is known in advance, so that
the gateway can refuse early and the progress bar has an end.
"""

from __future__ import annotations

import os
import stat
import tarfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from gateway.commands.client import ApiError, Json, UsageError

PIECE = 256 * 1024
_BLOCK = tarfile.BLOCKSIZE
_END = bytes(2 * _BLOCK)


@dataclass(frozen=True, slots=True)
class Parcel:
    """What is sent, in order: a whole archive, or each known file of a directory after its tar header."""

    name: str
    files: tuple[tuple[Path, int], ...]
    """Paths and sizes at the time of the scan."""
    packed: bool
    warnings: tuple[Json, ...] = ()
    """About files of the directory that are not sent."""

    @property
    def size(self) -> int:
        if not self.packed:
            return sum(size for _, size in self.files)
        return sum(_BLOCK + size + _padding(size) for _, size in self.files) + len(_END)

    def pieces(self) -> Iterator[bytes]:
        """Raises UsageError if a file cannot be read or has changed."""
        for path, size in self.files:
            if self.packed:
                yield _header(path.name, size)
            yield from _content(path, size)
            if self.packed:
                yield bytes(_padding(size))
        if self.packed:
            yield _END


def parcel(path: Path) -> Parcel:
    """Raises UsageError if there is nothing to send, and ApiError with findings for files that the gateway
    would refuse anyway."""
    try:
        status = path.stat()
        if stat.S_ISREG(status.st_mode):
            return Parcel(path.name, ((path, status.st_size),), packed=False)
        if stat.S_ISDIR(status.st_mode):
            files, ignored = _known_files(path)
            return Parcel(path.resolve().name, files, packed=True, warnings=ignored)
    except (OSError, ValueError) as error:
        raise UsageError(f"--upload: cannot read {path} ({_why(error)}).") from error
    raise UsageError(f"--upload: {path} is neither a directory nor a file.")


def _known_files(directory: Path) -> tuple[tuple[tuple[Path, int], ...], tuple[Json, ...]]:
    """The files to send, and warnings about others."""
    from adapters.checks.adapter_folder import directory_of  # as below
    from adapters.checks.file_kinds import KNOWN  # as below
    from adapters.checks.findings import Findings  # as below
    from adapters.checks.validate import check_files  # as below
    from adapters.errors import RejectedError  # only this command needs the checks

    directory, findings = directory_of(directory), Findings()
    check_files(directory, max_bytes=1 << 62, findings=findings)  # the gateway enforces its own limit
    try:
        findings.refuse_if_any(str(directory))
    except RejectedError as refusal:
        listed = tuple(asdict(finding) for finding in refusal.findings)
        raise ApiError(422, str(refusal), "adapter_rejected", listed) from refusal
    paths = [directory / name for name in KNOWN]
    files = tuple((path, path.stat().st_size) for path in paths if path.exists())
    return files, tuple(asdict(finding) for finding in findings.warnings)


def _header(name: str, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = size
    return info.tobuf(tarfile.GNU_FORMAT)


def _content(path: Path, size: int) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            left = size
            while left:
                piece = file.read(min(PIECE, left))
                if not piece:
                    raise UsageError(f"--upload: {path} was truncated during the upload.")
                left -= len(piece)
                yield piece
            if os.fstat(file.fileno()).st_size != size:
                raise UsageError(f"--upload: {path} changed during the upload.")
    except OSError as error:
        raise UsageError(f"--upload: cannot read {path} ({_why(error)}).") from error


def _padding(size: int) -> int:
    return -size % _BLOCK


def _why(error: OSError | ValueError) -> str:
    return getattr(error, "strerror", None) or str(error)

"""Reads zip archives. zipfile parses the central directory, limited to `_DIRECTORY` bytes."""

from __future__ import annotations

import io
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator
from typing import BinaryIO, Literal

from adapters.checks.findings import shown
from adapters.progress import CHUNK, ProgressMeter
from adapters.sources.archive_entries import ArchiveEntry, corrupt
from adapters.sources.staging_area import SourceRefusedError

_DIRECTORY = 1024 * 1024
_ENCRYPTED = 0x1 | 0x40 | 0x2000
"""Encryption bits in an entry's flags: traditional, strong, masked headers."""
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_DAMAGE = (
    zipfile.BadZipFile, zlib.error, EOFError, struct.error, ValueError, OverflowError, NotImplementedError,
    RuntimeError,
)  # fmt: skip


def is_zip(start: bytes) -> bool:
    return start.startswith((b"PK\x03\x04", b"PK\x05\x06"))


class ZipReader:
    def __init__(self, file: BinaryIO, meter: ProgressMeter) -> None:
        self._meter = meter
        try:
            self._archive = zipfile.ZipFile(_Bounded(file))
        except _DAMAGE as error:
            raise corrupt(error) from error
        self._entry: zipfile.ZipInfo | None = None  # mutable: the last one yielded

    def entries(self) -> Iterator[ArchiveEntry]:
        for info in self._archive.infolist():
            if not info.filename:
                raise corrupt("an entry without a name")
            if "\0" in info.orig_filename:
                raise corrupt(f"a name with a NUL, {shown(info.orig_filename)}")
            self._entry = info
            yield ArchiveEntry(info.orig_filename, _kind(info), info.file_size)

    def chunks(self) -> Iterator[bytes]:
        info = self._entry
        assert info is not None
        _check_readable(info)
        before = self._meter.done
        try:
            with self._archive.open(info) as file:
                size = 0
                while chunk := file.read(CHUNK):
                    size += len(chunk)
                    packed = int(info.compress_size * size / max(size, info.file_size))
                    self._meter.add(before + packed - self._meter.done)
                    yield chunk
        except _DAMAGE as error:
            raise corrupt(error) from error
        if size != info.file_size:
            raise corrupt(f"{size} bytes instead of {info.file_size}")


def _kind(info: zipfile.ZipInfo) -> Literal["file", "directory", "link", "other"]:
    kind = stat.S_IFMT(info.external_attr >> 16)
    if kind == stat.S_IFLNK:
        return "link"
    if info.is_dir():
        return "directory"
    return "file" if kind in (0, stat.S_IFREG) else "other"


def _check_readable(info: zipfile.ZipInfo) -> None:
    if info.flag_bits & _ENCRYPTED:
        raise SourceRefusedError(
            "archive_encrypted",
            "The archive is encrypted.",
            found=f"{shown(info.orig_filename)}, encrypted",
            expected="an archive without a password",
        )
    if info.compress_type not in _METHODS:
        raise SourceRefusedError(
            "archive_unsupported",
            "The archive uses an unsupported compression method.",
            found=f"method {info.compress_type}",
            expected="stored or deflated",
        )


class _Bounded(io.RawIOBase):
    """The file passed to zipfile; no single read exceeds `_DIRECTORY` bytes."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__()
        self._file = file

    def read(self, size: int = -1) -> bytes:
        if size > _DIRECTORY:
            raise zipfile.BadZipFile("the central directory is too long")
        return self._file.read(_DIRECTORY if size < 0 else size)

    def seek(self, position: int, whence: int = io.SEEK_SET) -> int:
        return self._file.seek(position, whence)

    def tell(self) -> int:
        return self._file.tell()

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

"""Reads tar archives, plain or compressed, in one forward pass.

tarfile parses the headers, but it reads headers of any length into memory, accepts negative sizes, treats a
damaged header as the end, and follows chains of headers recursively. It therefore gets a forward-only file
that returns at most `_HEADER` bytes between two contents and counts everything it returns.
"""

from __future__ import annotations

import lzma
import tarfile
import zlib
from collections.abc import Callable, Iterator
from typing import BinaryIO, Literal, Protocol

from adapters.progress import CHUNK, ProgressMeter
from adapters.sources.archive_entries import ArchiveEntry, corrupt
from adapters.sources.staging_area import too_much

_HEADER = 64 * 1024
_XZ_MEMORY = 128 * 1024 * 1024
"""The dictionary of `xz -9` needs 65 MiB."""
_GZIP, _XZ = b"\x1f\x8b", b"\xfd7zXZ\x00"
_BLOCK = tarfile.BLOCKSIZE
_DAMAGE = (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, ValueError, RecursionError)


def is_tar(start: bytes) -> bool:
    """Whether a file that begins with `start` is a tar archive, possibly compressed."""
    return start.startswith((_GZIP, _XZ)) or start[257:262] == b"ustar"


class TarReader:
    """`limit`: maximum unpacked bytes; `packed`: size of the file."""

    def __init__(self, file: BinaryIO, limit: int, packed: int, meter: ProgressMeter) -> None:
        self._out = _Forward(_plain(_Metered(file, meter)), limit, packed)
        self._entry: tarfile.TarInfo | None = None  # mutable: the last one yielded

    def entries(self) -> Iterator[ArchiveEntry]:
        try:
            archive = tarfile.TarFile(fileobj=self._out, mode="r", errorlevel=2)
            while True:
                self._out.header_left = _HEADER
                self._entry = archive.next()
                if self._entry is None:
                    break
                yield ArchiveEntry(self._entry.name, _kind(self._entry), self._entry.size)
            self._out.check_end()
        except _DAMAGE as error:
            raise corrupt(error) from error

    def chunks(self) -> Iterator[bytes]:
        assert self._entry is not None
        left = self._entry.size
        try:
            while left:
                chunk = self._out.content(min(left, CHUNK))
                left -= len(chunk)
                yield chunk
        except _DAMAGE as error:
            raise corrupt(error) from error


def _kind(member: tarfile.TarInfo) -> Literal["file", "directory", "link", "other"]:
    if member.issym() or member.islnk():
        return "link"
    if member.isdir():
        return "directory"
    return "file" if member.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and not member.sparse else "other"


class _Source(Protocol):
    def read(self, size: int, /) -> bytes: ...


class _Forward:
    """The forward-only file passed to tarfile."""

    def __init__(self, source: _Source, limit: int, packed: int) -> None:
        self._source = source
        self._limit = limit
        self._packed = packed
        self._position = 0  # mutable, as below
        self._last = b""
        self.header_left = _HEADER

    def read(self, size: int) -> bytes:
        """For headers. tarfile reads them in blocks, and long names and attributes in one piece."""
        self.header_left -= size
        if size < 0 or self.header_left < 0:
            raise tarfile.ReadError("a header is too long")
        self._last = b"".join(self._pieces(size))
        return self._last

    def content(self, size: int) -> bytes:
        chunk = self._some(size)
        if not chunk:
            raise EOFError("the archive ends within a file")
        return chunk

    def write(self, data: bytes) -> int:
        raise NotImplementedError

    def close(self) -> None:
        pass

    def tell(self) -> int:
        return self._position

    def seek(self, position: int) -> None:
        if position < self._position:
            raise tarfile.ReadError("a header points backwards")
        while self._position < position and self._some(min(position - self._position, CHUNK)):
            pass

    def check_end(self) -> None:
        """A complete archive ends with a block of zeros, a complete compressed file with its checksum."""
        if self._last != bytes(_BLOCK):
            raise tarfile.ReadError("the end of the archive is missing")
        while self._some(CHUNK):
            pass

    def _pieces(self, size: int) -> Iterator[bytes]:
        while size and (piece := self._some(size)):
            size -= len(piece)
            yield piece

    def _some(self, size: int) -> bytes:
        data = self._source.read(size)
        self._position += len(data)
        if self._position > self._limit:
            raise too_much("The archive", self._position, self._limit, self._packed)
        return data


class _Metered:
    def __init__(self, file: BinaryIO, meter: ProgressMeter) -> None:
        self._file = file
        self._meter = meter

    def read(self, size: int, /) -> bytes:
        data = self._file.read(size)
        self._meter.add(len(data))
        return data


class _Decoder(Protocol):
    """The common interface of the zlib, lzma and bz2 decompressors."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


class _Gunzip:
    """zlib's decompressor with the interface of lzma's: it keeps unconsumed input."""

    def __init__(self) -> None:
        self._decoder = zlib.decompressobj(wbits=31)

    @property
    def eof(self) -> bool:
        return self._decoder.eof

    @property
    def unused_data(self) -> bytes:
        return self._decoder.unused_data

    def decompress(self, data: bytes, max_length: int, /) -> bytes:
        return self._decoder.decompress(self._decoder.unconsumed_tail + data, max_length)


def _xz() -> _Decoder:
    return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY)


def _plain(file: _Source) -> _Source:
    start = file.read(_BLOCK)
    if start.startswith(_GZIP):
        return _Decompressed(file, start, _Gunzip)
    if start.startswith(_XZ):
        return _Decompressed(file, start, _xz)
    return _Rewound(file, start)


class _Rewound:
    def __init__(self, file: _Source, start: bytes) -> None:
        self._file = file
        self._start = start

    def read(self, size: int, /) -> bytes:
        if not self._start:
            return self._file.read(size)
        data, self._start = self._start[:size], self._start[size:]
        return data


class _Decompressed:
    """Decompresses concatenated streams, as gzip and xz allow. Raises EOFError if truncated."""

    def __init__(self, file: _Source, start: bytes, new: Callable[[], _Decoder]) -> None:
        self._file = file
        self._new = new
        self._decoder = new()
        self._input = start

    def read(self, size: int, /) -> bytes:
        while True:
            if self._decoder.eof and not self._next_stream():
                return b""
            data = self._decoder.decompress(self._input, size)
            self._input = b""
            if data:
                return data
            if not self._decoder.eof:
                self._input = self._file.read(_HEADER)
                if not self._input:
                    raise EOFError("the compressed data is truncated")

    def _next_stream(self) -> bool:
        """Begin the next stream. Zeros between streams and after the last are padding."""
        rest = self._decoder.unused_data.lstrip(b"\0")
        while not rest:
            more = self._file.read(_HEADER)
            if not more:
                return False
            rest = more.lstrip(b"\0")
        self._decoder, self._input = self._new(), rest
        return True

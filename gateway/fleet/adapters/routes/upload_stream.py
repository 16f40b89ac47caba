"""Streams an uploaded file to disk. There are two forms:

    the body is the file                            content-type: application/x-tar, application/gzip, …
    a form whose only part is the file              content-type: multipart/form-data; boundary=…

It writes no more than the limit, and aborts if the client sends too slowly or not at all.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Protocol

from fastapi import Request
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import ClientDisconnect

from gateway.errors import FlorinError

PIECE = 1024 * 1024
"""Bytes per write."""
SLOWEST = 16 * 1024
"""Bytes per second that a client must send on average after its first `idle` seconds."""
_FORM_OVERHEAD = 64 * 1024
"""Maximum bytes of a form besides its file: boundaries and headers."""
_RAW = {
    "", "application/octet-stream", "application/x-tar", "application/tar", "application/gzip",
    "application/x-gzip", "application/x-gtar", "application/x-compressed-tar", "application/tar+gzip",
    "application/zip", "application/x-zip-compressed",
}  # fmt: skip  # one name a line says no more


@dataclass(frozen=True, slots=True)
class Received:
    size: int
    name: str
    """The client's name of the file; may be empty."""


class _Sink(Protocol):
    """Consumes a body, on a thread."""

    def write(self, data: bytes) -> None: ...

    def close(self) -> Received:
        """Raises FlorinError if something is missing."""
        ...


async def receive(request: Request, path: Path, *, limit: int, idle: float) -> Received:
    """Write the uploaded file, of at most `limit` bytes, to `path`. `idle`: seconds without data after which
    the upload is aborted.

    Raises FlorinError, or OSError for the disk. The caller removes a partial file."""
    type_, options = parse_options_header(request.headers.get("content-type", ""))
    form = type_ == b"multipart/form-data"
    if not form and type_.decode("latin-1") not in _RAW:
        raise FlorinError(
            "invalid_value",
            f"content-type: {type_[:80].decode('latin-1')!r} is not an archive: send a tar, tar.gz or zip "
            "file as application/octet-stream, or a form with one file.",
            param="content-type",
            status=415,
        )
    declared = request.headers.get("content-length", "")
    if declared.isascii() and declared.isdigit() and int(declared) > limit + form * _FORM_OVERHEAD:
        raise too_large(limit)
    with path.open("xb", buffering=0) as file:
        sink: _Sink = _Form(file, limit, options.get(b"boundary", b"")) if form else _Plain(file, limit)
        async with aclosing(_pieces(request, idle)) as pieces:
            async for piece in pieces:
                await asyncio.to_thread(sink.write, piece)
        return sink.close()


def too_large(limit: int) -> FlorinError:
    return FlorinError("body_too_large", f"The upload exceeds {limit:,} bytes (FLORIN_MAX_ADAPTER_BYTES).")


async def _pieces(request: Request, idle: float) -> AsyncGenerator[bytes, None]:
    """The body in pieces of about PIECE bytes. Only time spent waiting for the client counts as slow."""
    piece, size, waited = bytearray(), 0, 0.0
    async with aclosing(request.stream()) as stream:
        while True:
            began = time.monotonic()
            try:
                async with asyncio.timeout(idle):
                    chunk = await anext(stream, None)
            except TimeoutError:
                raise _incomplete(f"The client sent nothing for {idle:g} seconds", status=408) from None
            except ClientDisconnect:
                raise _incomplete("The client disconnected before the end") from None
            if chunk is None:
                break
            waited += time.monotonic() - began
            size += len(chunk)
            if waited > idle and size < SLOWEST * (waited - idle):
                raise _incomplete(f"The upload is slower than {SLOWEST:,} bytes per second", status=408)
            piece += chunk
            if len(piece) >= PIECE:
                yield bytes(piece)
                piece.clear()
    if piece:
        yield bytes(piece)


def _incomplete(what: str, status: int | None = None) -> FlorinError:
    return FlorinError("upload_incomplete", f"{what}; the partial upload was discarded.", status=status)


@dataclass(slots=True)
class _Plain:
    file: BinaryIO
    limit: int
    size: int = 0

    def write(self, data: bytes) -> None:
        self.size += len(data)
        if self.size > self.limit:
            raise too_large(self.limit)
        view = memoryview(data)
        while view:  # unbuffered files may take less than all
            view = view[self.file.write(view) :]

    def close(self) -> Received:
        if not self.size:
            raise _incomplete("The body is empty")
        return Received(self.size, "")


@dataclass(slots=True)
class _Form:
    """A form with exactly one part, a file. Mutable: what the parser has found so far."""

    file: BinaryIO
    limit: int
    boundary: bytes
    _plain: _Plain = field(init=False)
    _parser: MultipartParser = field(init=False)
    _parts: int = 0
    _ended: bool = False
    _header: bytes = b""
    _value: bytes = b""
    _name: str | None = None

    def __post_init__(self) -> None:
        self._plain = _Plain(self.file, self.limit)
        try:
            if not self.boundary:
                raise FormParserError("no boundary")
            self._parser = MultipartParser(
                self.boundary,
                {
                    "on_part_begin": self._begin,
                    "on_header_field": self._on_header,
                    "on_header_value": self._on_value,
                    "on_header_end": self._header_end,
                    "on_headers_finished": self._headers_finished,
                    "on_part_data": lambda data, start, end: self._plain.write(data[start:end]),
                    "on_end": self._end,
                },
            )
        except FormParserError as error:
            raise _malformed(str(error)) from error

    def write(self, data: bytes) -> None:
        if self._ended:
            return  # data after the end of the form is ignored
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise _malformed(str(error)) from error

    def close(self) -> Received:
        if not self._ended:
            raise _incomplete("The form is truncated")
        return Received(self._plain.close().size, self._name or "")

    def _begin(self) -> None:
        self._parts += 1
        if self._parts > 1:
            raise _malformed("it has more than one part")

    def _on_header(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _on_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _header_end(self) -> None:
        if self._header.lower() == b"content-disposition":
            _, options = parse_options_header(self._value)
            if b"filename" in options:
                self._name = options[b"filename"].decode("utf-8", "replace")
        if self._header.lower() == b"content-transfer-encoding" and self._value.lower() != b"binary":
            raise _malformed("its part is encoded; send it unencoded")
        self._header = self._value = b""

    def _headers_finished(self) -> None:
        if self._name is None:
            raise _malformed("its part is not a file (it has no filename)")

    def _end(self) -> None:
        self._ended = True


def _malformed(reason: str) -> FlorinError:
    return FlorinError(
        "upload_incomplete", f"The form cannot be read: {reason[:200]}. Send exactly one file."
    )

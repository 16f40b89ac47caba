"""Decodes compressed request bodies, in steps and within bounds.

What a body costs depends on its decoded size, so the limits on bodies count that. Deflate can expand a
thousandfold: decoding stops as soon as the body exceeds its limit, or expands more than any text that a
client has reason to send.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Final

from gateway.errors import FlorinError

ACCEPTED: Final = "gzip, deflate"
STEP: Final = 256 * 1024
"""Bytes that are decoded at once: about 1 ms of the event loop."""
EXPANSION: Final = 100
"""Maximum ratio of a body's size to its compressed size. Chats compress to between a third and a tenth of
their size; a body with a higher ratio repeats itself for more than a megabyte."""
FREE: Final = 1024 * 1024
"""Bytes that a body may have at any ratio: so few cost nothing."""
_READ: Final = 64 * 1024
"""Compressed bytes that zlib gets at once: at each step, it copies those that it has not read."""
_GZIP: Final = 16 + zlib.MAX_WBITS
_AS_IT_IS: Final = frozenset({b"", b"identity"})
_KINDS: Final = {b"gzip": "gzip", b"x-gzip": "gzip", b"deflate": "deflate"}


class BodyDecoder:
    """Decodes one body that arrives in parts. Raises FlorinError for what is not in that encoding."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        # Mutable: bytes that have arrived, and bytes decoded from them.
        self._arrived = self.decoded = 0
        self._zlib: zlib._Decompress | None = None
        """None: nothing has arrived."""

    def feed(self, part: bytes) -> Iterator[bytes]:
        """What `part` decodes to, at most STEP bytes at a time."""
        view = memoryview(part)
        for start in range(0, len(part), _READ):
            yield from self._decode(view[start : start + _READ])

    def end(self) -> None:
        """The body has ended."""
        if self._zlib is None or not self._zlib.eof:
            raise self._unreadable("it is truncated")

    def _decode(self, data: bytes | memoryview) -> Iterator[bytes]:
        self._arrived += len(data)
        if self._zlib is None:
            self._zlib = zlib.decompressobj(_GZIP if self.kind == "gzip" else _deflate(data[0]))
        while True:
            try:
                piece = self._zlib.decompress(data, STEP)
            except zlib.error as error:
                raise self._unreadable(str(error)) from None
            if self._zlib.unused_data:
                raise self._unreadable("something follows its end")
            self.decoded += len(piece)
            if self.decoded > max(FREE, EXPANSION * self._arrived):
                message = f"The body is more than {EXPANSION} times as large as it is compressed."
                raise FlorinError("body_too_complex", message)
            if piece:
                yield piece
            data = self._zlib.unconsumed_tail
            if not data and len(piece) < STEP:
                return

    def _unreadable(self, reason: str) -> FlorinError:
        message = f"The body is not valid {self.kind}: {reason}."
        return FlorinError("invalid_value", message, param="content-encoding")


def _deflate(first: int) -> int:
    """The format of a body by its first byte: zlib's, as HTTP defines `deflate`, or the raw data
    within it, which some clients send."""
    return zlib.MAX_WBITS if first & 0x0F == zlib.DEFLATED else -zlib.MAX_WBITS


def decoder(headers: list[tuple[bytes, bytes]]) -> BodyDecoder | None:
    """The decoder for a body with these headers; None: it is sent as it is. Raises FlorinError (415)."""
    encoding = _encoding(headers)
    if encoding in _AS_IT_IS:
        return None
    if encoding not in _KINDS:
        raise _not_accepted(encoding, ACCEPTED)
    return BodyDecoder(_KINDS[encoding])


def refuse_encoded(headers: list[tuple[bytes, bytes]]) -> None:
    """For a body that is read as it arrives. Raises FlorinError (415) if it is compressed."""
    encoding = _encoding(headers)
    if encoding not in _AS_IT_IS:
        raise _not_accepted(encoding, "identity")


def _encoding(headers: list[tuple[bytes, bytes]]) -> bytes:
    """What is done to the body; several encodings follow each other."""
    return b", ".join(value.strip().lower() for name, value in headers if name == b"content-encoding")


def _not_accepted(encoding: bytes, accepted: str) -> FlorinError:
    return FlorinError(
        "invalid_value",
        f"The content encoding `{encoding.decode('latin-1')[:80]}` is not accepted here "
        f"(accepted: {accepted}). The body can always be sent uncompressed.",
        param="content-encoding",
        status=415,
        headers={"accept-encoding": accepted},
    )

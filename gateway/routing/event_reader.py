"""Finds the events of an event stream, as the HTML standard defines them (section 9.2).

Lines end with CR LF, LF or CR, and a byte order mark may precede the first. A blank line ends an event, whose
data is that of its `data` fields. Comments, and fields of other names, have none. Unlike browsers, it

- treats the last event of a stream that ended properly as complete, even without a blank line;
- treats a line that is not a field as an error: a JSON object without `data:` would be lost silently.

Pure. Input may be split anywhere, and costs time in proportion to its length.
"""

from __future__ import annotations

import re

from gateway.routing.engine_answers import MalformedError

_LARGEST_EVENT = 16 * 1024 * 1024
_SHORT = 4096
_MARK = b"\xef\xbb\xbf"
_FIELD = re.compile(rb"[a-z][a-z0-9_-]{0,63}")
"""`event`, `id`, `retry`, and names that the standard does not have: readers ignore those."""


class EventReader:
    """Splits one stream into events. Mutable: what has arrived, and is not an event yet."""

    __slots__ = ("_after_cr", "_beginning", "_long", "joinable", "rest")

    def __init__(self) -> None:
        self.rest = b""
        """The beginning of an event."""
        self.joinable = False
        """What follows need only be appended to `rest`: others may read both."""
        self._long = bytearray()
        """The parts of that beginning, if it is long: joining them at each step would take time in proportion
        to the square of its length."""
        self._beginning: bytes | None = b""
        """What may become a byte order mark; None: the stream has begun."""
        self._after_cr = False
        """The last byte was a CR. If an LF follows, it belongs to the same end of a line."""

    def feed(self, data: bytes) -> list[bytes]:
        """The events that are complete now, for `data_of`: lines that end with LF, without the blank one.
        Raises MalformedError."""
        if self._after_cr or self._beginning is not None or b"\r" in data:
            data = self._with_lf(data)
        if self._long:
            seam = len(self._long) - 1
            self._long += data
            if self._long.find(b"\n\n", seam) < 0:
                self._check_length()
                return []
            data = self.take()
        events = (self.rest + data).split(b"\n\n")
        self.keep(events.pop())
        return events

    def keep(self, rest: bytes) -> None:
        """Keep the beginning of an event. Raises MalformedError."""
        self.rest = rest
        if len(rest) > _SHORT:
            self.rest, self._long = b"", bytearray(rest)
        self.joinable = not (self._long or self._after_cr or self._beginning is not None)
        self._check_length()

    def take(self) -> bytes:
        """Take the beginning of an event."""
        rest = self.rest or bytes(self._long)
        self.rest, self._long = b"", bytearray()
        return rest

    def _check_length(self) -> None:
        if len(self._long) > _LARGEST_EVENT:
            raise MalformedError("the engine sent an event that is too long")

    def _with_lf(self, data: bytes) -> bytes:
        """`data` with LF for every end of a line, and without a byte order mark."""
        if self._beginning is not None:
            data = self._beginning + data
            if len(data) < len(_MARK) and _MARK.startswith(data):
                self._beginning = data
                return b""
            self._beginning = None
            data = data.removeprefix(_MARK)
        if data:
            after_cr, self._after_cr = self._after_cr, data.endswith(b"\r")
            if after_cr:
                data = data.removeprefix(b"\n")
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def data_of(event: bytes) -> bytes | None:
    """An event's data; None: it has none. Raises MalformedError."""
    if event.startswith(b"data: ") and b"\n" not in event:  # as nearly all engines write it
        return event[6:]
    data: list[bytes] = []
    for line in event.split(b"\n"):
        name, _, value = line.partition(b":")
        if name == b"data":
            data.append(value.removeprefix(b" "))
        elif name and not _FIELD.fullmatch(name):
            raise MalformedError("the engine sent a line that is not a field of an event")
    return b"\n".join(data) if data else None

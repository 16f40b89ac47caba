"""The cost of parsing a JSON text, measured before it is parsed.

Memory and parsing time grow with the number of values, not of bytes: 4 MB of text may hold one string (4 MB
in memory) or 1.4 million empty objects (over 100 MB, and 200 ms on the event loop). So values are counted
first. Most bodies are too short to have too many. For the rest, separators are counted; if there are many,
they are counted again exactly, outside of strings.

In invalid JSON the count may be wrong after the first error, but no parser gets past it either.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.errors import FlorinError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_LONG = 16_384
"""Bytes from which counting is worth the call into numpy."""
_MOST_DEPTH = 1_024
"""Levels of nesting that orjson parses."""
_STRINGS = 1_000
"""More strings than these are cut out of the text together, fewer one by one."""


@dataclass(frozen=True, slots=True)
class Complexity:
    """Counts of a JSON text, or the limits for them."""

    values: int
    """Array elements, member names, member values; containers count as values, too."""
    containers: int
    """Objects and arrays."""
    depth: int
    """Levels of nesting."""


def check(raw: bytes, limit: Complexity) -> None:
    """Raises FlorinError for a text that exceeds the limit. Takes at most about 10 ns per byte; for text with
    few brackets and at most two bytes for each value allowed, a third of what it takes to parse."""
    if len(raw) <= min(limit.values, limit.containers, limit.depth):  # each takes at least a byte
        return
    openings = _openings(raw)
    # A value takes at least two bytes with its separator, unless it is a bracket that is not closed yet.
    few = len(raw) // 2 + _MOST_DEPTH <= limit.values or _values(raw, openings) <= limit.values
    if few and openings <= min(limit.containers, limit.depth):
        return
    exact = measure(raw, depth=openings > limit.depth)
    for what, count, allowed in (
        ("values", exact.values, limit.values),
        ("objects and arrays", exact.containers, limit.containers),
        ("levels of nesting", exact.depth, limit.depth),
    ):
        if count > allowed:
            raise FlorinError("body_too_complex", f"The body has more than {allowed:,} {what}.")


def measure(raw: bytes, *, depth: bool = True) -> Complexity:
    """Exact counts of valid JSON; the depth only if asked for, else 0."""
    outside = _outside_strings(raw)
    openings = _openings(outside)
    return Complexity(_values(outside, openings), openings, _depth(outside) if depth else 0)


def _openings(text: bytes) -> int:
    """Opening brackets, wherever they are."""
    if len(text) < _LONG:
        return text.count(b"[") + text.count(b"{")
    import numpy as np  # noqa: PLC0415  # slow to import: `warm` does it before a request has to wait

    # `[` and `{` differ in this bit, and no other two codes become `{`.
    return int(np.count_nonzero(np.frombuffer(text, np.uint8) | np.uint8(0x20) == ord("{")))


def _values(text: bytes, openings: int) -> int:
    """Values, if every separator is one."""
    if len(text) < _LONG:
        return 1 + openings + text.count(b",") + text.count(b":")
    import numpy as np  # noqa: PLC0415  # as above

    codes = np.frombuffer(text, np.uint8)
    return 1 + openings + sum(int(np.count_nonzero(codes == ord(mark))) for mark in ",:")


def _outside_strings(raw: bytes) -> bytes:
    """What is outside of strings; if they are many, only the separators of it."""
    import numpy as np  # noqa: PLC0415  # as above

    if 4 * raw.count(b"\\") > len(raw):  # far more than text has: leave out what is escaped
        raw = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    codes = np.frombuffer(raw, np.uint8)
    quotes = np.append(codes == ord('"'), False)  # whatever the last backslash escapes
    quotes[_escaped(codes)] = False
    ends = np.flatnonzero(quotes)
    if len(ends) > 2 * _STRINGS:
        separators = np.isin(codes, np.frombuffer(b"[]{},:", np.uint8), kind="table")
        marks = codes[separators | quotes[:-1]]
        strings = marks == ord('"')
        return bytes(marks[~(np.bitwise_xor.accumulate(strings) | strings)])
    cuts = [-1, *ends.tolist(), len(raw)]
    return b"".join([raw[start + 1 : end] for start, end in zip(cuts[::2], cuts[1::2], strict=False)])


def _escaped(codes: NDArray[np.uint8]) -> NDArray[np.int32]:
    """The positions that a backslash escapes: behind each run of them, every second one is."""
    import numpy as np  # noqa: PLC0415  # as above

    backslashes = np.flatnonzero(codes == ord("\\")).astype(np.int32)
    begins_run = np.diff(backslashes, prepend=np.int32(-2)) != 1
    runs = backslashes
    if len(backslashes):
        runs = np.maximum.accumulate(np.where(begins_run, backslashes, np.int32(0)))
    odd: NDArray[np.int32] = backslashes[(backslashes - runs) % 2 == 0]
    return odd + 1


def _depth(outside: bytes) -> int:
    import numpy as np  # noqa: PLC0415  # as above

    brackets = np.frombuffer(outside.translate(None, _NO_BRACKETS), np.uint8)
    opening = (brackets == ord("[")) | (brackets == ord("{"))
    steps = np.where(opening, np.int8(1), np.int8(-1))
    return int(np.cumsum(steps, dtype=np.int32).max(initial=0))


def warm() -> None:
    """Import what the first complex body would wait for. Blocks for about 0.1 s."""
    measure(b"[1]")

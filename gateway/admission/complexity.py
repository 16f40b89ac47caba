"""The cost of parsing a JSON text, measured before it is parsed.

Memory and parsing time grow with the number of values, not of bytes: 4 MB of text may hold one string (4 MB
in memory) or 1.4 million empty objects (over 100 MB, and 200 ms on the event loop). So values are counted
first. Most bodies are too short to have too many. For the rest, separators are counted; if there are many,
they are counted again exactly, outside of strings.

In invalid JSON the count may be wrong after the first error, but no parser gets past it either.
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.errors import FlorinError

_STRUCTURE = b'"[]{},:'
_ELSE = bytes(set(range(256)) - set(_STRUCTURE))


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
    """Raises FlorinError for a text that exceeds the limit. Takes at most about 10 ns per byte."""
    if len(raw) <= min(limit.values, limit.containers, limit.depth):  # each takes at least a byte
        return
    containers = raw.count(b"[") + raw.count(b"{")
    values = 1 + containers + raw.count(b",") + raw.count(b":")
    if values <= limit.values and containers <= limit.containers and containers <= limit.depth:
        return
    found = measure(raw, depth=containers > limit.depth)
    for what, have, most in (
        ("values", found.values, limit.values),
        ("objects and arrays", found.containers, limit.containers),
        ("levels of nesting", found.depth, limit.depth),
    ):
        if have > most:
            raise FlorinError("body_too_complex", f"The body has more than {most:,} {what}.")


def measure(raw: bytes, *, depth: bool = True) -> Complexity:
    """Exact counts of valid JSON; the depth only if asked for, else 0."""
    import numpy as np  # noqa: PLC0415  # slow to import: `warm` does it before a request has to wait

    if b'\\"' in raw:  # without one, each quote begins or ends a string
        raw = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    marks = np.frombuffer(raw.translate(None, _ELSE), np.uint8)
    quotes = marks == ord('"')
    outside = marks[~(np.bitwise_xor.accumulate(quotes) | quotes)].tobytes() if len(marks) else b""
    containers = outside.count(b"[") + outside.count(b"{")
    return Complexity(
        values=1 + containers + outside.count(b",") + outside.count(b":"),
        containers=containers,
        depth=_depth(outside) if depth else 0,
    )


def _depth(outside: bytes) -> int:
    import numpy as np  # noqa: PLC0415  # as above

    brackets = np.frombuffer(outside.translate(None, b'",:'), np.uint8)
    opening = (brackets == ord("[")) | (brackets == ord("{"))
    steps = np.where(opening, np.int8(1), np.int8(-1))
    return int(np.cumsum(steps, dtype=np.int32).max(initial=0))


def warm() -> None:
    """Import what the first complex body would wait for. Blocks for about 0.1 s."""
    measure(b"[1]")

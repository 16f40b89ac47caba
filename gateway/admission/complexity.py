"""How much a JSON text becomes when it is parsed, known before it is.

Memory and parsing time grow with the number of values, not of bytes: a text of 4 MB may hold one string (4 MB
in memory) or 1.4 million empty objects (over 100 MB, and 200 ms of the event loop). So values are counted
first: nearly all bodies are too short to have too many; else separators are counted, and only where those are
many, exactly, outside of strings.

A text that is not JSON may be counted wrongly beyond its first error; no parser gets beyond it either.
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.errors import FlorinError

_STRUCTURE = b'"[]{},:'
_ELSE = bytes(set(range(256)) - set(_STRUCTURE))


@dataclass(frozen=True, slots=True)
class Complexity:
    """Of a JSON text, or the most of each that one may have."""

    values: int
    """Elements and members, with the members' names and the containers themselves."""
    containers: int
    """Objects and arrays."""
    depth: int
    """Containers within containers."""


def check(raw: bytes, limit: Complexity) -> None:
    """Raises FlorinError for a text that exceeds the limit. Takes about 10 ns a byte at worst."""
    if len(raw) <= min(limit.values, limit.containers, limit.depth):  # each takes a byte
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
    """Exactly, for what is JSON. The depth is 0 unless it is asked for."""
    import numpy as np  # noqa: PLC0415  # loads slowly: `warm` does it before a request must wait for it

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
    """Load what the first complicated body would wait for. Blocking, for about 0.1 s."""
    measure(b"[1]")

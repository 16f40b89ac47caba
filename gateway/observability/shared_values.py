"""Numbers that several processes write and each of them can read.

They lie in memory that no disk backs, so that a full one cannot hurt, and that outlives a process that is
killed: one anonymous file of the parent (`memfd`), handed down to its workers. It has segments of a fixed
size, one for each process that writes, so that nobody shares a number with anybody: a header, an array of
doubles, and the names of these, one JSON line each, in the same order. Names are only ever added. The
worker that takes a dead one's segment goes on counting where that one stopped, so that sums never run
backwards; what holds only while a process lives (gauges) it forgets first. NaN: nothing to show.
"""

from __future__ import annotations

import json
import logging
import math
import mmap
import os
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Self

log = logging.getLogger(__name__)

PARENT: Final = 0
"""The parent's own segment."""
ABSENT: Final = math.nan

_HEADER = 4096
_NUMBERS = 1 << 18
"""Numbers in a segment: more than all capped labels make together."""
_NAMES = _HEADER + 8 * _NUMBERS
_SEGMENT_BYTES = 64 << 20
"""Bytes of a segment. Memory is taken only as it is used."""
_ALIVE, _USED = 0, 1
"""Words of the header: whether its process lives, and how many bytes of names there are."""


@dataclass(frozen=True, slots=True)
class Name:
    kind: str
    """`counter`, `histogram` or `gauge`."""
    family: str
    sample: str
    labels: tuple[tuple[str, str], ...] = ()
    mode: str = ""
    """Of a gauge, how those of several workers become one: `livesum`, `livemin`, `livemax`."""

    def line(self) -> bytes:
        return json.dumps([self.kind, self.family, self.sample, self.labels, self.mode]).encode() + b"\n"

    @classmethod
    def of(cls, line: bytes) -> Self:
        kind, family, sample, labels, mode = json.loads(line)
        return cls(kind, family, sample, tuple((key, value) for key, value in labels), mode)


class _Segment:
    """Of one process, as everybody sees it. Mutable: the names read so far."""

    def __init__(self, file: int, index: int) -> None:
        self._map = mmap.mmap(file, _SEGMENT_BYTES, offset=index * _SEGMENT_BYTES)
        view = memoryview(self._map)
        self.header = view[:_HEADER].cast("Q")
        self.doubles = view[_HEADER:_NAMES].cast("d")
        self._text = view[_NAMES:]
        self._lock = threading.Lock()
        self._read = 0
        self._names: list[Name] = []

    def names(self) -> list[Name]:
        """By index."""
        with self._lock:
            self._catch_up()
            return self._names.copy()

    def add(self, name: Name) -> int | None:
        """The index of a new name; None: there is no room. For the segment's own process."""
        line = name.line()
        with self._lock:
            self._catch_up()
            index, used = len(self._names), self._read
            if index >= _NUMBERS or used + len(line) > len(self._text):
                return None
            self._text[used : used + len(line)] = line
            self.doubles[index] = ABSENT
            self.header[_USED] = used + len(line)  # from here on it can be seen
        return index

    def _catch_up(self) -> None:
        used = self.header[_USED]
        if used > self._read:
            self._names += map(Name.of, bytes(self._text[self._read : used]).splitlines())
            self._read = used


class SharedValues:
    """`file`: of `create`, in this process or, inherited, in its parent."""

    def __init__(self, file: int) -> None:
        self.file = file
        self._segments = [_Segment(file, index) for index in range(os.fstat(file).st_size // _SEGMENT_BYTES)]

    def __repr__(self) -> str:
        living = [i for i, segment in enumerate(self._segments) if segment.header[_ALIVE]]
        return f"<SharedValues of {len(self._segments)}, living: {living}>"

    @classmethod
    def create(cls, segments: int) -> Self:
        """Of the parent, and for so many besides. The parent's own is alive from the start."""
        if sys.platform == "linux":
            file = os.memfd_create("florin-metrics")
        else:
            with tempfile.TemporaryFile() as named:
                file = os.dup(named.fileno())
        os.ftruncate(file, (1 + segments) * _SEGMENT_BYTES)
        made = cls(file)
        made._segments[PARENT].header[_ALIVE] = 1
        return made

    def close(self) -> None:
        """The memory itself stays while a worker, or somebody here, has it mapped."""
        os.close(self.file)

    # For the parent:

    def mark_dead(self, index: int) -> None:
        """The process of that segment is gone, and its gauges with it."""
        self._segments[index].header[_ALIVE] = 0

    # For the process whose segment it is:

    def writer(self, index: int) -> Writer:
        return Writer(self._segments[index])

    # For all:

    def of(self, index: int, name: Name) -> float:
        """The number of that name in one segment; NaN where there is none."""
        segment = self._segments[index]
        names = segment.names()
        return float(segment.doubles[names.index(name)]) if name in names else ABSENT

    def read(self) -> list[tuple[Name, float]]:
        """Each number of each process: gauges only of the living ones."""
        found: list[tuple[Name, float]] = []
        for segment in self._segments:
            names, alive = segment.names(), segment.header[_ALIVE]
            for name, value in zip(names, segment.doubles[: len(names)].tolist(), strict=True):
                if not math.isnan(value) and (alive or name.kind != "gauge"):
                    found.append((name, value))
        return found


class Writer:
    """One process's own segment. Mutable: where each name is."""

    def __init__(self, segment: _Segment) -> None:
        self._segment = segment
        self._lock = threading.Lock()
        self._indexes: dict[Name, int] = {}
        for index, name in enumerate(segment.names()):
            self._indexes[name] = index
            if name.kind == "gauge":
                segment.doubles[index] = ABSENT
        segment.header[_ALIVE] = 1

    def value(self, name: Name) -> Value:
        """The number of that name: a counter goes on where it was, anything absent begins at 0."""
        with self._lock:
            index = self._indexes.get(name)
            if index is None:
                index = self._segment.add(name)
                if index is None:
                    log.error("There is no room for the metric %s: it is not shown.", name.sample)
                    return Value(memoryview(bytearray(8)).cast("d"), 0)
                self._indexes[name] = index
            value = Value(self._segment.doubles, index)
            if math.isnan(value.get()):
                value.set(0.0)
            return value

    def forget(self, which: Callable[[Name], bool]) -> None:
        """Show these no more, until somebody asks for their value again."""
        with self._lock:
            for name, index in self._indexes.items():
                if which(name):
                    self._segment.doubles[index] = ABSENT


class Value:
    """One number, thread-safe, in the form that prometheus_client expects of a value."""

    __slots__ = ("_doubles", "_index", "_lock")
    _multiprocess = True

    def __init__(self, doubles: memoryview[Any], index: int) -> None:
        self._doubles = doubles
        self._index = index
        self._lock = threading.Lock()

    def inc(self, amount: float) -> None:
        with self._lock:
            self._doubles[self._index] += amount

    def set(self, value: float, timestamp: float | None = None) -> None:
        del timestamp
        with self._lock:
            self._doubles[self._index] = value

    def get(self) -> float:
        return self._doubles[self._index]  # type: ignore[no-any-return]

    def get_exemplar(self) -> None:
        return None

"""Numbers that several processes write and all of them can read.

They live in one anonymous file of the parent (`memfd`), which its workers inherit. It uses no disk, which
could be full, and survives a killed process. Each process writes to its own segment of fixed size: a header,
an array of doubles, and their names in the same order, one JSON line each. Names are never removed. The
replacement of a dead worker takes over its segment and continues its counters, so that sums never decrease;
it clears the gauges, which only hold while a process lives. NaN means absent.
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
"""Index of the parent's segment."""
ABSENT: Final = math.nan

_HEADER = 4096
_NUMBERS = 1 << 18
"""Numbers in a segment: more than all capped labels need."""
_NAMES = _HEADER + 8 * _NUMBERS
_SEGMENT_BYTES = 64 << 20
"""Size of a segment. Memory is only allocated as it is used."""
_ALIVE, _USED, _CONNECTIONS, _DEATHS = 0, 1, 2, 3
"""Words of the header: whether the process lives, the number of bytes of names, 1 plus the number of its
client connections (0: it accepts none), and in the parent's, the number of workers that have died. After it:
when each of the last DEATHS_KEPT died, and its exit code."""
DEATHS_KEPT: Final = 32
_CODE_OFFSET: Final = 1 << 16
"""Words have no sign, but the exit codes of killed processes do."""


@dataclass(frozen=True, slots=True)
class Name:
    kind: str
    """`counter`, `histogram` or `gauge`."""
    family: str
    sample: str
    labels: tuple[tuple[str, str], ...] = ()
    mode: str = ""
    """How a gauge is aggregated over workers: `livesum`, `livemin`, `livemax`."""

    def line(self) -> bytes:
        return json.dumps([self.kind, self.family, self.sample, self.labels, self.mode]).encode() + b"\n"

    @classmethod
    def of(cls, line: bytes) -> Self:
        kind, family, sample, labels, mode = json.loads(line)
        return cls(kind, family, sample, tuple((key, value) for key, value in labels), mode)


class _Segment:
    """One process's segment, as every process sees it. Mutable: the names read so far."""

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
        """The names, by index."""
        with self._lock:
            self._catch_up()
            return self._names.copy()

    def add(self, name: Name) -> int | None:
        """Add a name and return its index, or None if the segment is full. Only for the segment's process."""
        line = name.line()
        with self._lock:
            self._catch_up()
            index, used = len(self._names), self._read
            if index >= _NUMBERS or used + len(line) > len(self._text):
                return None
            self._text[used : used + len(line)] = line
            self.doubles[index] = ABSENT
            self.header[_USED] = used + len(line)  # makes it visible
        return index

    def _catch_up(self) -> None:
        used = self.header[_USED]
        if used > self._read:
            self._names += map(Name.of, bytes(self._text[self._read : used]).splitlines())
            self._read = used


class SharedValues:
    """`file`: the descriptor from `create`, which workers inherit."""

    def __init__(self, file: int) -> None:
        self.file = file
        self._segments = [_Segment(file, index) for index in range(os.fstat(file).st_size // _SEGMENT_BYTES)]

    def __repr__(self) -> str:
        living = [i for i, segment in enumerate(self._segments) if segment.header[_ALIVE]]
        return f"<SharedValues of {len(self._segments)}, living: {living}>"

    @classmethod
    def create(cls, segments: int) -> Self:
        """Create the memory in the parent, with a segment for itself, which is alive at once, and `segments`
        for workers."""
        if sys.platform == "linux":
            file = os.memfd_create("florin-metrics")
        else:
            with tempfile.TemporaryFile() as named:
                file = os.dup(named.fileno())
        os.ftruncate(file, (1 + segments) * _SEGMENT_BYTES)
        memory = cls(file)
        memory._segments[PARENT].header[_ALIVE] = 1
        return memory

    def close(self) -> None:
        """Close the file; the memory remains while any process has it mapped."""
        os.close(self.file)

    def mark_dead(self, index: int) -> None:
        """Record that the segment's process has exited, which ends its gauges. Only for the parent."""
        self._segments[index].header[_ALIVE] = 0
        self.accepts(index, None)

    def accepts(self, index: int, connections: int | None) -> None:
        """Record that the segment's process has that many client connections; None: it accepts none."""
        self._segments[index].header[_CONNECTIONS] = 0 if connections is None else 1 + connections

    def died(self, died_at: float, code: int) -> None:
        """Record that a worker died: when by the monotonic clock, and its exit code. Only for the parent."""
        header = self._segments[PARENT].header
        place = _DEATHS + 1 + 2 * (header[_DEATHS] % DEATHS_KEPT)
        header[place], header[place + 1] = int(died_at * 1e6), code + _CODE_OFFSET
        header[_DEATHS] += 1  # makes it visible

    @property
    def death_count(self) -> int:
        return int(self._segments[PARENT].header[_DEATHS])

    def deaths(self) -> list[tuple[float, int]]:
        """The last DEATHS_KEPT deaths of workers, oldest first."""
        header = self._segments[PARENT].header
        last = self.death_count
        places = [_DEATHS + 1 + 2 * (n % DEATHS_KEPT) for n in range(max(0, last - DEATHS_KEPT), last)]
        return [(header[place] / 1e6, header[place + 1] - _CODE_OFFSET) for place in places]

    def fewest_connections(self) -> int | None:
        """The smallest number of connections of a process that accepts them; None if there is none."""
        counts = [segment.header[_CONNECTIONS] for segment in self._segments]
        return min((count - 1 for count in counts if count), default=None)

    def writer(self, index: int) -> Writer:
        """Only for the segment's process."""
        return Writer(self._segments[index])

    def of(self, index: int, name: Name) -> float:
        """The value of a name in one segment; NaN if absent."""
        segment = self._segments[index]
        names = segment.names()
        return float(segment.doubles[names.index(name)]) if name in names else ABSENT

    def read(self) -> list[tuple[Name, float]]:
        """All numbers of all processes; gauges only of living processes."""
        numbers: list[tuple[Name, float]] = []
        for segment in self._segments:
            names, alive = segment.names(), segment.header[_ALIVE]
            for name, value in zip(names, segment.doubles[: len(names)].tolist(), strict=True):
                if not math.isnan(value) and (alive or name.kind != "gauge"):
                    numbers.append((name, value))
        return numbers


class Writer:
    """Writes one process's segment. Mutable: the index of each name."""

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
        """The value of a name; continues from its current value, or starts at 0."""
        with self._lock:
            index = self._indexes.get(name)
            if index is None:
                index = self._segment.add(name)
                if index is None:
                    log.error("Metric %s is not exported: the shared memory for metrics is full", name.sample)
                    return Value(memoryview(bytearray(8)).cast("d"), 0)
                self._indexes[name] = index
            value = Value(self._segment.doubles, index)
            if math.isnan(value.get()):
                value.set(0.0)
            return value

    def forget(self, which: Callable[[Name], bool]) -> None:
        """Remove these until `value` is called for them again."""
        with self._lock:
            for name, index in self._indexes.items():
                if which(name):
                    self._segment.doubles[index] = ABSENT


class Value:
    """One number, thread-safe, with the interface of prometheus_client's values."""

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

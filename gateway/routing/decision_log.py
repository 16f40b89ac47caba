"""The latest scheduling decisions, by request id: what `florin explain` shows of a past request.

Each worker has a file of fixed size in the state directory, and writes it in a circle through shared memory.
So any worker of the host can read what another decided, and a crash loses nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import mmap
import os
import time
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from adapters.placement.scheduling.view import Action, Pick

log = logging.getLogger(__name__)

RECORDS = 4096
"""Decisions that each worker keeps."""
RECORD_BYTES = 1024
_MOST_SHOWN = 8
"""Engines whose costs are kept with a decision, cheapest first."""
_WORTH_TELLING = 0.001
"""Seconds: shorter searches, which most are, would only make the records longer."""
_PATTERN = "decisions-*.ring"
_END = b"\n"


class Search(NamedTuple):
    """How long one search for an engine took, in seconds."""

    whole: float
    queued: float
    """The part spent waiting for the request's turn."""
    loading: float
    """The part spent waiting for an adapter load."""


AT_ONCE = Search(0.0, 0.0, 0.0)


Row = tuple[
    str, int, int, str, str, tuple[float, ...] | None,
    tuple[str, Action, float, int, tuple[tuple[str, Action, float], ...], int] | None,
]  # fmt: skip
"""A decision in the ring: the request's id, the attempt, Unix microseconds, the adapter, the engine, its
`Search` if it took time, and its `Pick`."""


class DecisionLog:
    """One worker's ring. `note` never blocks, and leaves to the reader what only a reader needs: nearly all
    decisions are overwritten unread."""

    def __init__(self, directory: Path, *, records: int = RECORDS) -> None:
        """Takes over the file of a worker that has ended, or creates one. Without room on the disk, decisions
        are not kept."""
        self._directory = directory
        self._records = records
        self._next = 0
        size = records * RECORD_BYTES
        self._file: int | None = None
        try:
            self._file = _unused(directory)
            os.posix_fallocate(self._file, 0, size)  # else a full disk would kill the process at a write
            self._ring = mmap.mmap(self._file, size)
        except OSError as error:
            log.warning("Scheduling decisions cannot be kept for `florin explain`: %s", error)
            self._ring = mmap.mmap(-1, size)

    def __repr__(self) -> str:
        return f"<DecisionLog of {self._records}, {self._next} written>"

    def close(self) -> None:
        self._ring.close()
        if self._file is not None:
            os.close(self._file)

    def note(  # one row of the log
        self,
        request_id: str,
        attempt: int,
        adapter: str,
        engine: str,
        pick: Pick | None,
        search: Search = AT_ONCE,
    ) -> None:
        """`pick`: the last one for this attempt; None: it needed none. `search`: what went before it."""
        waits = (*search,) if search.whole >= _WORTH_TELLING else None
        decided = None
        if pick is not None:
            decided = pick.engine, pick.action, pick.cost, pick.fleet, pick.considered, pick.cached
        row: Row = (request_id, attempt, time.time_ns() // 1000, adapter, engine, waits, decided)
        line = orjson.dumps(row)
        if len(line) >= RECORD_BYTES:
            line = _shortened(row)
        start = self._next % self._records * RECORD_BYTES
        line += _END  # what was here before may go on after it
        self._ring[start : start + len(line)] = line
        self._next += 1

    def find(self, request_id: str) -> list[dict[str, Any]]:
        """The decisions of all attempts of a request, in any worker of this host, in order."""
        encoded_id = orjson.dumps(request_id)
        decisions = [
            record
            for path in self._directory.glob(_PATTERN)
            for row in _matching(path, encoded_id)
            if (record := _decision(row))["request_id"] == request_id
        ]
        return sorted(decisions, key=lambda record: record["attempt"])


def _shortened(row: Row) -> bytes:
    """A row that is too long for the ring, with as many of the cheapest engines as there is room for."""
    *head, decided = row
    considered = _cheapest(decided[4]) if decided else []
    while True:
        line = orjson.dumps((*head, decided and (*decided[:4], considered, decided[5])))
        if len(line) < RECORD_BYTES or not considered:
            return line[: RECORD_BYTES - 1]
        considered.pop()


def _cheapest(considered: Iterable[tuple[str, Action, float]]) -> list[tuple[str, Action, float]]:
    return sorted(considered, key=lambda option: option[2])[:_MOST_SHOWN]


def _decision(row: Row) -> dict[str, Any]:
    """A decision as `florin explain` has it."""
    request_id, attempt, decided_at, adapter, engine, waits, decided = row
    record: dict[str, Any] = {
        "request_id": request_id, "attempt": attempt, "decided_at": decided_at, "adapter": adapter,
        "engine": engine,
    }  # fmt: skip
    if waits is not None:
        names = ("search_ms", "queue_ms", "load_ms")
        record |= {name: round(seconds * 1000, 1) for name, seconds in zip(names, waits, strict=True)}
    if decided is not None:
        picked, action, cost, fleet, considered, cached = decided
        options = [[name, act, round(ms, 1)] for name, act, ms in _cheapest(considered)]
        record |= {
            "picked": picked, "action": action, "cost_ms": round(cost, 1), "fleet": fleet,
            "considered": options, "expected_cached_tokens": cached,
        }  # fmt: skip
    return record


def _unused(directory: Path) -> int:
    """The first file that no process has locked; the lock ends with the process."""
    for number in count():
        file = os.open(directory / f"decisions-{number}.ring", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
        else:
            return file
    raise AssertionError("count() ends")


def _matching(path: Path, encoded_id: bytes) -> Iterator[Row]:
    with contextlib.suppress(OSError):
        data = path.read_bytes()
        position = data.find(encoded_id)
        while position >= 0:
            start = position - position % RECORD_BYTES
            with contextlib.suppress(orjson.JSONDecodeError):  # half overwritten just now
                yield tuple(orjson.loads(data[start : start + RECORD_BYTES].partition(_END)[0]))
            position = data.find(encoded_id, start + RECORD_BYTES)

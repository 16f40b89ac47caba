"""Brings the log into the ledger: its own worker's, and those of workers that died.

It notes how far it has come only after the commit, so whatever stops it, the next try begins at or before the
first record that the ledger does not hold, and the ledger passes over those that it does.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from gateway.metering.ledger.database import REFUSALS, is_definite
from gateway.metering.ledger.ledger import Inserted, Ledger, LedgerUnavailableError
from gateway.metering.records import UsageRecord, is_final, orphaned, parse_line
from gateway.metering.wal.segments import Cursor, WorkerDirectory, others, set_aside
from gateway.observability.metrics import Metrics
from gateway.runtime.clock import system_time

log = logging.getLogger("florin.metering")

_ROWS = 500
"""Records per transaction."""
_LONGEST_PAUSE = 15.0
_LAST_SECONDS = 3.0
"""What a worker that stops gives to its backlog; the rest is for its successor."""


class _OutOfTimeError(Exception):
    """What is left must wait for the next pass, or for the next worker."""


Late = Callable[[], bool]
"""Asked before each transaction: is it time to leave off?"""


class LiveLog(Protocol):
    """The living log of this worker, as far as the shipper needs it."""

    @property
    def synced_segment(self) -> int:
        """Only segments before this one may be deleted."""

    def flush(self) -> bool: ...


class Shipper:
    def __init__(
        self,
        root: Path,
        mine: WorkerDirectory,
        wal: LiveLog,
        ledger: Ledger,
        metrics: Metrics,
        *,
        interval: float = 0.5,
        now: Callable[[], int] = system_time,
    ) -> None:
        """`now`: Unix microseconds, by the clock by which records are made."""
        self._now = now
        self._root = root
        self._mine = mine
        self._wal = wal
        self._ledger = ledger
        self._metrics = metrics
        self._interval = interval
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="florin-shipper", daemon=True)
        # Mutable state of whoever holds the lock.
        self._lock = threading.Lock()
        self._pause = interval
        self._oldest: int | None = None

    def start(self) -> None:
        self._thread.start()

    def flush_now(self, patience: float = 3.0) -> bool:
        """Everything appended so far on this worker, and all that dead ones left, is in the ledger when this
        returns True; False: the backlog takes longer than `patience` seconds. Raises LedgerUnavailableError.
        Waits for the disk and the database."""
        late = _after(patience)
        if not (self._wal.flush() and self._lock.acquire(timeout=patience)):
            return False
        try:
            self._ship_all(late)
        except _OutOfTimeError:
            return False
        finally:
            self._lock.release()
        return True

    def close(self) -> None:
        """After the log is closed: ship the rest, and leave nothing behind if that succeeds."""
        self._stop.set()
        self._thread.join()
        with self._lock:
            try:
                self._adopt(self._mine, _after(_LAST_SECONDS))
            except (LedgerUnavailableError, OSError, _OutOfTimeError) as error:
                log.warning("Ledger: %s The usage log stays in %s.", error, self._mine.path)
            finally:
                self._mine.release()

    def _run(self) -> None:
        while not self._stop.wait(self._pause):
            with self._lock:
                try:
                    self._ship_all(self._stop.is_set)
                except _OutOfTimeError:
                    return
                except (LedgerUnavailableError, OSError) as error:
                    self._pause = min(self._pause * 2, _LONGEST_PAUSE)
                    log.warning("Ledger: %s Next try in %.1f s.", error, self._pause)
                except Exception:  # the thread must live on: nothing else ships
                    self._pause = _LONGEST_PAUSE
                    log.exception("Shipping usage records failed.")
                else:
                    self._pause = self._interval
                self._metrics.wal_oldest(self.age)

    def _ship_all(self, late: Late) -> None:
        self._ship(self._mine, late, dead=False)
        for path in others(self._root, self._mine.path):
            directory = WorkerDirectory.adopt(path)
            if directory is not None:
                try:
                    self._adopt(directory, late)
                finally:
                    directory.release()
        self._oldest = None

    def _adopt(self, directory: WorkerDirectory, late: Late) -> None:
        """Nobody writes there any more: ship it whole, close what was left open, and remove it."""
        self._ship(directory, late, dead=True)
        orphans = [orphaned(last) for last in _open_attempts(directory)]
        for start in range(0, len(orphans), _ROWS):
            self._insert(orphans[start : start + _ROWS], late)
        self._metrics.usage_records("orphaned", len(orphans))
        directory.remove()

    def _ship(self, directory: WorkerDirectory, late: Late, *, dead: bool) -> None:
        cursor, unnoted = directory.cursor(), None
        for batch in directory.batches(cursor, dead=dead):
            records = [r for r in map(self._parse, filter(is_final, batch.lines)) if r is not None]
            for start in range(0, len(records), _ROWS):
                self._insert(records[start : start + _ROWS], late)
            try:
                directory.save_cursor(batch.end)
            except OSError as error:  # the disk is full: what comes now makes room
                unnoted = error
            if not dead:  # a dead one's segments are needed once more, for what it left open
                directory.delete_before(min(batch.end.segment, self._wal.synced_segment))
        if unnoted:
            raise unnoted

    def _insert(self, records: list[UsageRecord], late: Late) -> None:
        if records and late():
            raise _OutOfTimeError("There is no time to ship the rest.")
        try:
            result = self._insert_each(records)
        except LedgerUnavailableError:
            self._oldest = self._oldest or min(r.ended or r.seen for r in records)
            raise
        self._metrics.usage_records("shipped", result.new)
        self._metrics.usage_records("duplicate", result.duplicate)
        if result.quarantined:
            self._metrics.usage_records("quarantined", result.quarantined)
            log.error("Ledger: %d records went to quarantine.", result.quarantined)

    def _insert_each(self, records: list[UsageRecord]) -> Inserted:
        """In one transaction if the ledger takes them all; else in halves, until the one that it does not
        take stands alone and is set aside."""
        try:
            return self._ledger.insert(records)
        except REFUSALS as error:
            if not is_definite(error):
                raise
            if len(records) == 1:
                self._refuse(records[0].line(), str(error))
                return Inserted()
        middle = len(records) // 2
        one, two = self._insert_each(records[:middle]), self._insert_each(records[middle:])
        return Inserted(one.new + two.new, one.duplicate + two.duplicate, one.quarantined + two.quarantined)

    def _parse(self, line: bytes) -> UsageRecord | None:
        try:
            return parse_line(line)
        except ValueError as error:
            if line.endswith(b"}"):
                self._refuse(line, str(error))
            else:
                self._metrics.usage_records("damaged")
                log.warning("Usage log: a torn line of %d bytes was passed over.", len(line))
            return None

    def _refuse(self, line: bytes, why: str) -> None:
        self._metrics.usage_records("damaged")
        log.error("Usage log: a line is set aside, because no ledger takes it: %s", why)
        set_aside(self._root, line)

    @property
    def age(self) -> float:
        """Seconds since the oldest record ended that the ledger would not take; 0: it takes them."""
        return 0.0 if self._oldest is None else max(0.0, (self._now() - self._oldest) / 1e6)


def _after(seconds: float) -> Late:
    deadline = time.monotonic() + seconds
    return lambda: time.monotonic() > deadline


def _open_attempts(directory: WorkerDirectory) -> list[UsageRecord]:
    """The last line of each attempt without a final. Memory in proportion to the attempts that were open at
    one time, not to the log."""
    still: dict[str, UsageRecord] = {}
    for batch in directory.batches(Cursor(), dead=True):
        for line in batch.lines:
            try:
                record = parse_line(line)
            except ValueError:
                continue  # torn or damaged: what came before it stands
            if record.kind == "final":
                still.pop(record.id, None)
            elif (held := still.get(record.id)) is None or held.seq <= record.seq:
                still[record.id] = record  # a new segment has what is known now before what waited unsynced
    return list(still.values())

"""Ships the usage log to the ledger: this worker's log, and those of workers that died."""

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
from gateway.metering.wal.segments import Cursor, WorkerDirectory, others, refuse
from gateway.observability.metrics import Metrics
from gateway.runtime.clock import system_time

log = logging.getLogger("florin.metering")

_ROWS = 500
"""Records per transaction."""
_LONGEST_PAUSE = 15.0
_LAST_SECONDS = 3.0
"""Seconds that a stopping worker spends on its backlog; its successor ships the rest."""


class _OutOfTimeError(Exception):
    """The rest must wait for the next pass, or for the next worker."""


Late = Callable[[], bool]
"""Whether to stop; called before each transaction."""


class LiveLog(Protocol):
    """The part of this worker's `WriteAheadLog` that the shipper uses."""

    @property
    def synced_segment(self) -> int:
        """Only segments before this one may be deleted."""

    def flush(self) -> bool: ...


class Shipper:
    """Copies final records from the log's segments into the ledger, in its own thread.

    The position is saved only after the commit. After any interruption, shipping therefore resumes at or
    before the first unshipped record, and the ledger skips the records that it already has: each record is
    stored exactly once. Shipped segments are deleted.

    It also adopts the directories of workers that died, whose lock is free: it ships their records and closes
    their open attempts as orphaned. Lines that no ledger accepts go to `refused.jsonl`, so that they hold up
    nothing else. While the ledger is unavailable, it retries with increasing pauses.

    `Meter` starts and closes it. `flush_now` may be called from any thread but the event loop's.
    """

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
        """`now`: Unix microseconds, by the clock that records use."""
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
        """Ship everything appended so far on this worker, and the logs of dead workers. False if that takes
        longer than `patience` seconds. Blocks on the disk and the database. Raises LedgerUnavailableError."""
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
        """Ship the rest after the log was closed, and remove the directory if everything is shipped."""
        self._stop.set()
        self._thread.join()
        with self._lock:
            try:
                self._adopt(self._mine, _after(_LAST_SECONDS))
            except (LedgerUnavailableError, OSError, _OutOfTimeError) as error:
                log.warning("Ledger: %s Unshipped records stay in %s.", error, self._mine.path)
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
                    log.warning("Ledger: %s Retrying in %.1f s.", error, self._pause)
                except Exception:  # the thread must go on: nothing else ships
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
            except OSError as error:  # the disk is full; deleting segments makes room
                unnoted = error
            if not dead:  # a dead worker's segments are read again for its open attempts
                directory.delete_before(min(batch.end.segment, self._wal.synced_segment))
        if unnoted:
            raise unnoted

    def _insert(self, records: list[UsageRecord], late: Late) -> None:
        if records and late():
            raise _OutOfTimeError("Out of time; the rest is shipped later.")
        try:
            result = self._insert_each(records)
        except LedgerUnavailableError:
            self._oldest = self._oldest or min(r.ended or r.seen for r in records)
            raise
        self._metrics.usage_records("shipped", result.new)
        self._metrics.usage_records("duplicate", result.duplicate)
        if result.quarantined:
            self._metrics.usage_records("quarantined", result.quarantined)
            log.error("Ledger: %d records quarantined.", result.quarantined)

    def _insert_each(self, records: list[UsageRecord]) -> Inserted:
        """In one transaction; if the ledger rejects it, in halves, until the rejected record is alone and
        moved to `refused.jsonl`."""
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
                log.warning("Usage log: skipped a torn line of %d bytes.", len(line))
            return None

    def _refuse(self, line: bytes, why: str) -> None:
        self._metrics.usage_records("damaged")
        log.error("Usage log: moved an unusable line to refused.jsonl: %s", why)
        refuse(self._root, line)

    @property
    def age(self) -> float:
        """Seconds since the end of the oldest unshipped record; 0 if the ledger accepts records."""
        return 0.0 if self._oldest is None else max(0.0, (self._now() - self._oldest) / 1e6)


def _after(seconds: float) -> Late:
    deadline = time.monotonic() + seconds
    return lambda: time.monotonic() > deadline


def _open_attempts(directory: WorkerDirectory) -> list[UsageRecord]:
    """The last line of each attempt without a final. Memory use is proportional to the attempts that were
    open at the same time, not to the log."""
    still: dict[str, UsageRecord] = {}
    for batch in directory.batches(Cursor(), dead=True):
        for line in batch.lines:
            try:
                record = parse_line(line)
            except ValueError:
                continue  # torn or damaged: the earlier line stands
            if record.kind == "final":
                still.pop(record.id, None)
            elif (held := still.get(record.id)) is None or held.seq <= record.seq:
                still[record.id] = record  # a new segment repeats older unsynced lines after current ones
    return list(still.values())

"""Ships the usage log to the ledger: this worker's log, and those of workers that died."""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from gateway.metering.ledger.continuity import Mark, excluded, lost
from gateway.metering.ledger.database import LedgerUnavailableError
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.records import UsageRecord, is_final, of_newer_version, orphaned, parse_line
from gateway.metering.wal.insertion import InsertedLines, Inserter, InserterUnavailableError, insert_lines
from gateway.metering.wal.kept import KeptLog
from gateway.metering.wal.segments import Cursor, WorkerDirectory, others, refuse
from gateway.observability.metrics import Metrics
from gateway.runtime.clock import system_time

log = logging.getLogger("florin.metering")

_ROWS = 500
"""Records per transaction."""
_OFFLOAD = 100
"""Records of a transaction for which it is worth starting a process. A worker with fewer needs none."""
_LONGEST_PAUSE = 15.0
_LAST_PAUSE = 0.2
"""Seconds until a stopping worker tries again."""
_CHECK_SECONDS = 5.0
_MARKS = 20
"""Seconds, and transactions, between checks whether the ledger still has what it acknowledged."""


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
    stored exactly once. Shipped segments are deleted, or kept for a while, so that what the ledger's database
    loses after it has acknowledged it can be shipped again.

    It also adopts the directories of workers that died, whose lock is free: it ships their records and closes
    their open attempts as orphaned. Lines that the ledger cannot store go to `refused.jsonl`, so that they do
    not block others. While the ledger is unavailable, it retries with increasing pauses.

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
        inserter: Inserter | None = None,
        kept: KeptLog | None = None,
        last_seconds: float = 3.0,
    ) -> None:
        """`now`: Unix microseconds, by the clock that records use. `inserter`: a process that inserts.
        `kept`: where shipped records stay for a while; None: they are not kept. `last_seconds`: how long
        `close` tries to ship what is left."""
        self._last_seconds = last_seconds
        self._inserter = inserter
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
        self._kept = kept
        self._marks = sorted(kept.marks()) if kept else list[Mark]()
        """Commits that the ledger acknowledged since it was last found to have them all, and one before."""
        self._checked = -math.inf
        self.newer = set[Path]()
        """The directories that wait for the newer version of Florin that wrote them."""

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
        late = _after(self._last_seconds)
        with self._lock:
            try:
                while (error := self._last_pass(late)) is not None and not late():
                    time.sleep(min(_LAST_PAUSE, self._last_seconds))
                if error is not None:
                    rest = self._mine.batches(self._mine.cursor(), dead=True)
                    log.warning(
                        "Ledger: %s %d usage records are not in it yet. The next gateway with this state "
                        "directory ships them from %s; without the directory, they are lost.",
                        error,
                        sum(map(is_final, itertools.chain.from_iterable(batch.lines for batch in rest))),
                        self._mine.path,
                    )
            finally:
                self._mine.release()

    def _last_pass(self, late: Late) -> Exception | None:
        """None: everything is shipped."""
        try:
            self._adopt(self._mine, late)
        except (LedgerUnavailableError, OSError, _OutOfTimeError) as error:
            return error
        return None

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
            directory = WorkerDirectory.adopt(path) if path not in self.newer else None
            if directory is not None:
                try:
                    if _of_newer_version(directory):
                        self.newer.add(path)
                        log.warning("Usage log: %s waits for the newer version that wrote it.", path)
                    else:
                        self._adopt(directory, late)
                finally:
                    directory.release()
        self._check(late)
        self._oldest = None

    def _adopt(self, directory: WorkerDirectory, late: Late) -> None:
        """Ship all of a dead worker's log, close its open attempts, and remove it."""
        if directory is not self._mine:
            self._note(*directory.marks())
        self._ship(directory, late, dead=True)
        orphans = [orphaned(last).line() for last in _open_attempts(directory)]
        for start in range(0, len(orphans), _ROWS):
            self._insert(orphans[start : start + _ROWS], late)
        self._metrics.usage_records("orphaned", len(orphans))
        if self._kept is not None:
            self._kept.keep_last(directory, orphans, self._marks)
        directory.remove()

    def _ship(self, directory: WorkerDirectory, late: Late, *, dead: bool) -> None:
        cursor, unnoted = directory.cursor(), None
        for batch in directory.batches(cursor, dead=dead):
            lines = list(filter(is_final, batch.lines))
            for start in range(0, len(lines), _ROWS):
                self._insert(lines[start : start + _ROWS], late)
            try:
                directory.save_cursor(batch.end, self._marks)
            except OSError as error:  # the disk is full; deleting segments makes room
                unnoted = error
                if self._kept is not None:
                    self._kept.clear()
            if not dead:  # a dead worker's segments are read again for its open attempts
                done = min(batch.end.segment, self._wal.synced_segment)
                if self._kept is not None and unnoted is None:
                    self._kept.keep(directory, before=done)
                directory.delete_before(done)
            if len(self._marks) >= _MARKS:
                self._check(late, *([directory] if dead else []))
        if unnoted:
            raise unnoted

    def _check(self, late: Late, *adopted: WorkerDirectory) -> None:
        """Ship again what the ledger's database has lost. `adopted`: see `_ship_again`."""
        if self._kept is None:
            return
        if len(self._marks) < _MARKS and time.monotonic() - self._checked < _CHECK_SECONDS:
            return
        if self._marks:
            with self._ledger.read() as connection:
                missing = lost(connection, self._marks)
            if missing:
                self._ship_again(self._kept, late, *adopted)
            else:
                self._marks = [max(self._marks)]
        self._kept.expire()  # only now: the gateway may have been away for longer
        self._checked = time.monotonic()

    def _ship_again(self, kept: KeptLog, late: Late, *adopted: WorkerDirectory) -> None:
        """Insert everything that is kept, and what is shipped of this worker's own log and of one that it is
        adopting. Other workers find out themselves. Does not touch the positions in the logs."""
        known, self._marks = self._marks, []
        count = 0
        shipped = (_until(directory.cursor(), directory) for directory in {self._mine, *adopted})
        try:
            for lines in itertools.chain(kept.lines(), *shipped):
                finals = list(filter(is_final, lines))
                for start in range(0, len(finals), _ROWS):
                    count += self._insert_again(finals[start : start + _ROWS], late)
        except BaseException:
            self._marks = known
            raise
        self._metrics.usage_records("recovered", count)
        log.error(
            "Ledger: its database has lost usage records that it had acknowledged, as after a failover to a "
            "server that was behind. Inserted %d again from the usage log.",
            count,
        )
        self._mine.save_cursor(self._mine.cursor(), self._marks)
        kept.forget_marks()

    def _insert_again(self, lines: Sequence[bytes], late: Late) -> int:
        if lines and late():
            raise _OutOfTimeError("Out of time; the rest is shipped later.")
        records = dict[str, bytes]()
        for line in lines:
            with contextlib.suppress(ValueError):  # it was refused before
                records[parse_line(line).id] = line
        with self._ledger.read() as connection:
            gone = excluded(connection, records)
        done = self._insert_lines([line for id_, line in records.items() if id_ not in gone])
        self._note(done.inserted.mark)
        return done.inserted.new

    def _insert(self, lines: Sequence[bytes], late: Late) -> None:
        if lines and late():
            raise _OutOfTimeError("Out of time; the rest is shipped later.")
        try:
            done = self._insert_lines(lines)
        except LedgerUnavailableError:
            self._oldest = self._oldest or _oldest(lines)
            self._checked = -math.inf  # the server that answers next may be another
            raise
        for line, reason in done.refused:
            self._refuse(line, reason)
        for length in done.torn:
            self._metrics.usage_records("damaged")
            log.warning("Usage log: skipped a torn line of %d bytes.", length)
        result = done.inserted
        self._note(result.mark)
        self._metrics.usage_records("shipped", result.new)
        self._metrics.usage_records("duplicate", result.duplicate)
        if result.quarantined:
            self._metrics.usage_records("quarantined", result.quarantined)
            log.error("Ledger: %d records quarantined.", result.quarantined)

    def _insert_lines(self, lines: Sequence[bytes]) -> InsertedLines:
        inserter = self._inserter
        if inserter is not None and (inserter.running or len(lines) >= _OFFLOAD):
            try:
                done = inserter(lines)
            except InserterUnavailableError as error:
                log.warning("Insertion process unavailable (%s); inserting usage records here.", error)
            else:
                self._metrics.ledger_transaction("write", done.seconds)
                return done
        return insert_lines(self._ledger, lines)

    def _note(self, *marks: Mark | None) -> None:
        if self._kept is not None:
            self._marks += [mark for mark in marks if mark]

    def _refuse(self, line: bytes, reason: str) -> None:
        self._metrics.usage_records("damaged")
        log.error("Usage log: moved an unusable line to refused.jsonl: %s", reason)
        refuse(self._root, line)

    @property
    def age(self) -> float:
        """Seconds since the end of the oldest unshipped record; 0 if the ledger accepts records."""
        return 0.0 if self._oldest is None else max(0.0, (self._now() - self._oldest) / 1e6)


def _of_newer_version(directory: WorkerDirectory) -> bool:
    """One version wrote all of it."""
    for batch in directory.batches(Cursor(), dead=True):
        if batch.lines:
            return of_newer_version(batch.lines[0])
    return False


def _until(end: Cursor, directory: WorkerDirectory) -> Iterator[list[bytes]]:
    """The lines before that position; maybe some more, up to the end of a chunk."""
    for batch in directory.batches(Cursor(), dead=False):
        yield batch.lines
        if batch.end >= end:
            return


def _after(seconds: float) -> Late:
    deadline = time.monotonic() + seconds
    return lambda: time.monotonic() > deadline


def _oldest(lines: Sequence[bytes]) -> int | None:
    """When the first of these records ended, in Unix microseconds."""
    ends = list[int]()
    for line in lines:
        with contextlib.suppress(ValueError):
            record = parse_line(line)
            ends.append(record.ended or record.seen)
    return min(ends, default=None)


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
            elif (earlier := still.get(record.id)) is None or earlier.seq <= record.seq:
                still[record.id] = record  # a new segment repeats older unsynced lines after current ones
    return list(still.values())

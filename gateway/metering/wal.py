"""The write-ahead log of one worker: appended to by the event loop, written by a thread of its own.

`append` puts a function into a queue and returns; the flusher thread calls it for the record, writes all
that has come within `interval` seconds in one go, and syncs at most every `sync_interval`. What is written
survives the death of the process; what is synced survives that of the machine.

When a write or a sync fails, what was not synced is kept in memory (up to a bound) and goes, whole, into a
fresh segment at the next try: after a failed sync nobody can say what the old segment holds. Lines may so
stand twice in the log; the ledger takes each id once.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path

from gateway.metering.records import UsageRecord
from gateway.metering.segments import WorkerDirectory
from gateway.metrics import Metrics

log = logging.getLogger("florin.metering")

Entry = Callable[[], UsageRecord | None]
"""Makes the record, in the flusher's thread; None: there is nothing to write any more."""

_RETRY = 0.5
_TICK = 1.0


def _nothing() -> Iterable[UsageRecord]:
    return ()


class WriteAheadLog:
    def __init__(
        self,
        directory: WorkerDirectory,
        metrics: Metrics,
        *,
        interval: float = 0.01,
        sync_interval: float = 0.05,
        segment_bytes: int = 8 * 1024 * 1024,
        max_queue: int = 100_000,
        max_pending: int = 32 * 1024 * 1024,
        tick: Callable[[], Iterable[UsageRecord]] = _nothing,
        carry: Callable[[], Iterable[UsageRecord]] = _nothing,
    ) -> None:
        """`tick` gives checkpoints, about once a second; `carry` what a new segment must begin with, so that
        the segments before it can be deleted: a line for each attempt that is still open."""
        self._directory = directory
        self._metrics = metrics
        self._interval = interval
        self._sync_interval = sync_interval
        self._segment_bytes = segment_bytes
        self._max_queue = max_queue
        self._max_pending = max_pending
        self._tick = tick
        self._carry = carry
        self._thread: threading.Thread | None = None

        # Mutable state shared with the event loop.
        self.healthy = True
        self._queue: deque[Entry] = deque()
        self._dirty = False
        self._wake = threading.Event()
        self._closing = False

        # Mutable state of whoever holds the lock: the flusher, or a caller of `flush`.
        self._lock = threading.Lock()
        self._file: int | None = None
        self._number = max(directory.segments(), default=0)
        self._size = 0
        self._unsynced = bytearray()
        self._written = 0
        self._synced_at = 0.0
        self._ticked_at = time.monotonic()
        self._retry_at = 0.0

    def __repr__(self) -> str:
        return (
            f"<WriteAheadLog {'healthy' if self.healthy else 'FAILING'} segment={self._number} "
            f"queued={len(self._queue)} unsynced={len(self._unsynced)}>"
        )

    def append(self, entry: Entry) -> bool:
        """Never waits. False: the queue is full, and the entry was not taken."""
        queue = self._queue
        if len(queue) >= self._max_queue:
            self.healthy = False
            self._metrics.usage_records("lost")
            return False
        queue.append(entry)
        if not self._dirty:
            self._dirty = True
            self._wake.set()
        return True

    def open(self) -> None:
        """Raises OSError when the log cannot be written at all."""
        with self._lock:
            self._open_segment()
        self._thread = threading.Thread(target=self._run, name="florin-wal", daemon=True)
        self._thread.start()

    def flush(self) -> bool:
        """Write and sync what has been appended until now. Waits for the disk; any thread but the event
        loop's. False: it failed, and will be tried again."""
        with self._lock:
            return self._flush(sync=True)

    def close(self) -> None:
        """The last flush. Nothing may be appended afterwards."""
        self._closing = True
        self._wake.set()
        if self._thread:
            self._thread.join()
        with self._lock:
            self._retry_at = 0.0
            if not self._flush(sync=True):
                log.error("Usage log: %d bytes could not be written and are lost.", len(self._unsynced))
            self._close_file()

    def _run(self) -> None:
        while not self._closing:
            self._wake.wait(self._sync_interval if self._unsynced else _TICK)
            self._wake.clear()
            if not self._closing:
                time.sleep(self._interval)  # let a group gather
            with self._lock:
                try:
                    self._flush(sync=False)
                except Exception:  # a defect; the thread must live on, and the gateway may stop accepting
                    self.healthy = False
                    log.exception("Usage log: the flusher failed.")

    def _flush(self, *, sync: bool) -> bool:
        self._dirty = False
        self._drain()
        now = time.monotonic()
        if now < self._retry_at:
            return False
        if not self._unsynced:
            return True
        try:
            self._write()
            if sync or now - self._synced_at >= self._sync_interval:
                self._sync(now)
        except OSError as error:
            self._failed(error, now)
            return False
        if not self.healthy:
            self.healthy = True
            log.warning("Usage log: it can be written again.")
        return True

    def _drain(self) -> None:
        queue = self._queue
        for _ in range(len(queue)):
            entry = queue.popleft()
            try:
                self._hold(entry())
            except Exception:  # one bad record must not stop the log
                log.exception("Usage log: a record could not be made and is lost.")
                self._metrics.usage_records("lost")
        now = time.monotonic()
        if now - self._ticked_at >= _TICK:
            self._ticked_at = now
            for record in self._tick():
                self._hold(record)

    def _hold(self, record: UsageRecord | None) -> None:
        if record is None:
            return
        final = record.kind == "final"
        # While nothing can be written, finals have the last half of the room for themselves.
        if len(self._unsynced) < (self._max_pending if final else self._max_pending // 2):
            self._unsynced += record.line()
            if final:
                self._metrics.usage_records("logged")
        elif final:
            self._metrics.usage_records("lost")
            log.error("Usage log: no room left in memory either; record %s is lost.", record.id)

    def _write(self) -> None:
        if self._file is None:
            self._open_segment()
            return
        count = _write_all(self._file, bytes(self._unsynced[self._written :]))
        self._written += count
        self._size += count

    def _sync(self, now: float) -> None:
        if self._file is not None and self._unsynced:
            os.fdatasync(self._file)
            self._unsynced.clear()
            self._written = 0
        self._synced_at = now
        if self._size >= self._segment_bytes:
            self._close_file()
            self._open_segment()

    def _open_segment(self) -> None:
        """A new segment appears under its name only when it holds what it must: the open attempts, and what
        may not have reached the one before."""
        data = b"".join(record.line() for record in self._carry()) + bytes(self._unsynced)
        number = self._number + 1
        path = self._directory.segment(number)
        hidden = path.with_name(f".{path.name}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
        file = os.open(hidden, flags, 0o600)
        try:
            _write_all(file, data)
            os.fdatasync(file)
            hidden.rename(path)
            _sync_directory(path.parent)
        except OSError:
            os.close(file)
            hidden.unlink(missing_ok=True)
            raise
        self._file, self._number, self._size = file, number, len(data)
        self._unsynced.clear()
        self._written = 0

    def _failed(self, error: OSError, now: float) -> None:
        log.error(
            "Usage log: %s cannot be written: %s. %d bytes wait in memory.",
            self._directory.path,
            error,
            len(self._unsynced),
        )
        self.healthy = False
        self._retry_at = now + _RETRY
        self._close_file()

    def _close_file(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
        self._written = 0


def _write_all(file: int, data: bytes) -> int:
    done = 0
    while done < len(data):
        done += os.write(file, data[done:] if done else data)
    return done


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

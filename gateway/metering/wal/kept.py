"""Usage records that the ledger has acknowledged, kept for a while: the ledger's database may lose its last
commits in a failover (see `gateway.metering.ledger.continuity`).

usage/.kept/<worker>-<segment>.jsonl   shipped segments of workers
usage/.kept/<worker>-orphans.jsonl     final records of the attempts that were open when a worker died
usage/.kept/<worker>.marks             what the ledger had acknowledged to a worker that is gone
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from gateway.metering.ledger.continuity import Mark
from gateway.metering.wal.segments import WorkerDirectory, dump_marks, load_marks, read_segment

log = logging.getLogger("florin.metering")


class KeptLog:
    """The workers of a state directory share it. Its files are never needed to go on, so a file that cannot
    be kept is reported and otherwise ignored."""

    def __init__(self, root: Path, seconds: float, *, now: Callable[[], float] = time.time) -> None:
        """`seconds`: how long to keep what has been shipped. `now`: Unix seconds, by the clock of files."""
        self._path = root / ".kept"
        self._seconds = seconds
        self._now = now

    def keep(self, directory: WorkerDirectory, *, before: int | None = None) -> None:
        """Move the worker's segments, or those before that number, here."""
        for number in directory.segments():
            if before is None or number < before:
                self._take(directory.segment(number), f"{directory.path.name}-{number:08}.jsonl")

    def keep_last(self, directory: WorkerDirectory, orphans: Sequence[bytes], marks: Iterable[Mark]) -> None:
        """Keep what a worker that is gone has left."""
        self.keep(directory)
        name = directory.path.name
        try:
            self._path.mkdir(mode=0o700, exist_ok=True)
            if orphans:
                (self._path / f"{name}-orphans.jsonl").write_bytes(b"".join(orphans))
            (self._path / f"{name}.marks").write_text(dump_marks(marks))
        except OSError as error:
            log.warning("Usage log: cannot keep what was shipped: %s", error)

    def marks(self) -> set[Mark]:
        """The marks of workers that are gone."""
        kept: set[Mark] = set()
        for path in self._files("*.marks"):
            with suppress(OSError):
                kept.update(load_marks(path.read_text()))
        return kept

    def forget_marks(self) -> None:
        for path in self._files("*.marks"):
            path.unlink(missing_ok=True)

    def lines(self) -> Iterator[list[bytes]]:
        """Everything that is kept."""
        for path in self._files("*.jsonl"):
            with suppress(FileNotFoundError):  # another worker has just removed it
                for lines, _ in read_segment(path, 0, closed=True):
                    yield lines

    def expire(self) -> None:
        """Remove what is old, and the oldest while more is kept than the disk has left."""
        files = []
        for path in self._files("*"):
            with suppress(FileNotFoundError):
                status = path.stat()
                files.append((status.st_mtime, status.st_size, path))
        if not files:
            return
        total, free = sum(size for _, size, _ in files), shutil.disk_usage(self._path).free
        for since, size, path in sorted(files):
            if since > self._now() - self._seconds and total <= free:
                return
            path.unlink(missing_ok=True)
            total, free = total - size, free + size

    def clear(self) -> None:
        """Make room on the disk."""
        for path in self._files("*"):
            path.unlink(missing_ok=True)

    def _take(self, segment: Path, name: str) -> None:
        try:
            self._path.mkdir(mode=0o700, exist_ok=True)
            os.utime(segment, (self._now(), self._now()))
            segment.rename(self._path / name)
        except FileNotFoundError:
            return
        except OSError as error:
            log.warning("Usage log: cannot keep what was shipped: %s", error)
            segment.unlink(missing_ok=True)

    def _files(self, pattern: str) -> list[Path]:
        return sorted(self._path.glob(pattern))

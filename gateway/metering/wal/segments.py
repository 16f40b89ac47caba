"""The files of the usage log: a directory per worker with numbered segments of JSON lines.

usage/<worker>/lock             locked (flock) by the live worker, or by the worker that adopts its directory
usage/<worker>/00000001.jsonl   segments; only the highest one grows
usage/<worker>/shipped          position up to which the ledger has them: `<segment> <offset>`, and a line
                                for each mark of the last commits: `<batch> <id>`
usage/refused.jsonl             lines that the ledger cannot store, for a person to examine
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from gateway.metering.ledger.continuity import Mark

CHUNK = 512 * 1024
"""Bytes read at once; bounds the shipper's memory regardless of the backlog."""

REFUSED = "refused.jsonl"


@dataclass(frozen=True, slots=True, order=True)
class Cursor:
    """A position: everything before it is in the ledger."""

    segment: int = 0
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Batch:
    lines: list[bytes]
    end: Cursor


class NewSegment:
    """A segment that is invisible until `publish`, so that it is never read without its first lines."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._hidden = path.with_name(f".{path.name}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
        self.file = os.open(self._hidden, flags, 0o600)

    def publish(self, data: bytes) -> None:
        """Write the first lines and rename it to its name. Does not sync."""
        done = 0
        while done < len(data):
            done += os.write(self.file, data[done:] if done else data)
        self._hidden.rename(self._path)

    def discard(self) -> None:
        os.close(self.file)
        self._hidden.unlink(missing_ok=True)

    def sync(self) -> None:
        """Sync its content and its name."""
        os.fdatasync(self.file)
        directory = os.open(self._path.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


class WorkerDirectory:
    """A worker's directory, locked by this process until `release`."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock: int | None = lock

    def __repr__(self) -> str:
        return f"<WorkerDirectory {self.path.name} {'held' if self._lock is not None else 'released'}>"

    @classmethod
    def create(cls, root: Path, worker: str = "") -> Self:
        """Create a directory, locked before it becomes visible under its name."""
        root.mkdir(parents=True, exist_ok=True)
        for gone in root.glob(".gone-*"):  # left by a killed process
            shutil.rmtree(gone, ignore_errors=True)
        worker = worker or f"{os.getpid()}-{secrets.token_hex(4)}"
        hidden = root / f".new-{worker}"
        hidden.mkdir()
        lock = _lock(hidden)
        if lock is None:
            raise OSError(f"{hidden} is locked by another process.")
        hidden.rename(root / worker)
        return cls(root / worker, lock)

    @classmethod
    def adopt(cls, path: Path) -> Self | None:
        """Lock the directory of a dead worker; None while it is alive or another worker has adopted it."""
        try:
            lock = _lock(path)
        except OSError:  # removed just now
            return None
        return None if lock is None else cls(path, lock)

    def remove(self) -> None:
        """Remove a fully shipped directory. Renames it first, so that no one adopts a half-deleted one."""
        gone = self.path.with_name(f".gone-{self.path.name}")
        with suppress(FileNotFoundError):
            self.path.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)

    def release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def segments(self) -> list[int]:
        with suppress(FileNotFoundError):
            return sorted(int(p.stem) for p in self.path.glob("*.jsonl") if p.stem.isdigit())
        return []

    def segment(self, number: int) -> Path:
        return self.path / f"{number:08}.jsonl"

    def new_segment(self, number: int) -> NewSegment:
        """Raises OSError."""
        return NewSegment(self.segment(number))

    def cursor(self) -> Cursor:
        """Where shipping resumes. If the file is lost or damaged, from the start, which only costs time."""
        try:
            segment, offset = self._shipped().partition("\n")[0].split()
            return Cursor(int(segment), int(offset))
        except (OSError, ValueError):
            return Cursor()

    def marks(self) -> list[Mark]:
        """What the ledger acknowledged last."""
        try:
            return load_marks(self._shipped().partition("\n")[2])
        except (OSError, ValueError):
            return []

    def save_cursor(self, cursor: Cursor, marks: Iterable[Mark] = ()) -> None:
        hidden = self.path / ".shipped"
        hidden.write_text(f"{cursor.segment} {cursor.offset}\n{dump_marks(marks)}")
        hidden.replace(self.path / "shipped")

    def _shipped(self) -> str:
        return (self.path / "shipped").read_text()

    def batches(self, start: Cursor, *, dead: bool) -> Iterator[Batch]:
        """Complete lines from `start` on. An incomplete last line is left for later in the growing segment,
        and returned as it is where no one will complete it."""
        numbers = [n for n in self.segments() if n >= start.segment]
        for number in numbers:
            closed = dead or number != numbers[-1]
            offset = start.offset if number == start.segment else 0
            for lines, end in read_segment(self.segment(number), offset, closed=closed):
                yield Batch(lines, Cursor(number, end))
            if closed:
                yield Batch([], Cursor(number + 1, 0))

    def delete_before(self, number: int) -> None:
        for old in self.segments():
            if old < number:
                self.segment(old).unlink(missing_ok=True)


def read_segment(path: Path, offset: int, *, closed: bool) -> Iterator[tuple[list[bytes], int]]:
    """Its complete lines from `offset` on, with the offset of their end; if it is `closed`, the rest, too."""
    with path.open("rb") as file:
        file.seek(offset)
        while chunk := file.read(CHUNK):
            length = chunk.rfind(b"\n") + 1
            if not length:
                # No newline: still being written, or torn, or, in a full chunk, not a log at all.
                if not closed and len(chunk) < CHUNK:
                    return
                length = len(chunk)
            offset += length
            file.seek(offset)
            yield chunk[:length].splitlines(), offset


def dump_marks(marks: Iterable[Mark]) -> str:
    return "".join(f"{mark.batch} {mark.id}\n" for mark in marks)


def load_marks(text: str) -> list[Mark]:
    """Raises ValueError."""
    pairs = [line.split() for line in text.splitlines()]
    return [Mark(int(batch), id_) for batch, id_ in pairs]


def others(root: Path, mine: Path) -> list[Path]:
    """The directories of other workers, alive or dead."""
    with suppress(FileNotFoundError):
        return sorted(p for p in root.iterdir() if p != mine and p.is_dir() and not p.name.startswith("."))
    return []


def refuse(root: Path, line: bytes) -> None:
    """Keep a line that cannot be shipped. It may appear there twice."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    file = os.open(root / REFUSED, flags, 0o600)
    try:
        os.write(file, line.rstrip(b"\n") + b"\n")
        os.fsync(file)
    finally:
        os.close(file)


def _lock(directory: Path) -> int | None:
    """An exclusive flock, which the kernel releases when the process ends."""
    descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor

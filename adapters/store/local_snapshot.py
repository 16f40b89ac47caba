"""The registry as this host's workers last knew it, on disk. A worker starts from it if Redis is unavailable
or has lost the registry, and an operator can restore from it.

    registry-kept.json      three lines: the SHA-256 of the rest; the registry's position and the time of
                            writing; documents and secrets. The last two are JSON
    registry-previous.json  the same, for the previous epoch
    registry-kept.lock      held by the worker that writes

The file is private to its owner, because it holds key digests and the installation's secrets. A file that is
torn, modified, readable by others or owned by another user is rejected.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Final

import orjson
from pydantic import TypeAdapter

from adapters.store.continuity import Position
from adapters.store.protocol.registry import Restored, Snapshot

NAME: Final = "registry-kept.json"
PREVIOUS: Final = "registry-previous.json"
_LOCK: Final = "registry-kept.lock"
_FORMAT: Final = 1
_LONGEST_HEAD: Final = 64 * 1024
_PART: Final = 200
"""Documents that are written as JSON at a time: a fraction of a millisecond."""
_positions = TypeAdapter(Position)


class LocalSnapshotError(Exception):
    """The file cannot be used; the message says why."""


@dataclass(frozen=True, slots=True)
class LocalSnapshot:
    position: Position
    documents: dict[str, dict[str, str]]
    secrets: dict[str, str]
    at: int
    """Time of writing, Unix microseconds, UTC."""

    @property
    def snapshot(self) -> Snapshot:
        return Snapshot(self.position, self.documents)

    def restored(self, *, entire: bool) -> Restored:
        """`entire` replaces the entire registry; otherwise only essentials that are missing are restored."""
        return Restored(self.documents if entire else None, self.secrets)


def newer(first: Position, second: Position) -> bool:
    return (first.epoch, first.seq) > (second.epoch, second.seq)


def read(path: Path) -> LocalSnapshot | None:
    """The file's contents, or None if there is no file. Blocking. Raises LocalSnapshotError."""
    try:
        content = _content(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LocalSnapshotError(f"{path} cannot be read: {error.strerror or error}.") from error
    digest, _, rest = content.partition(b"\n")
    if hashlib.sha256(rest).hexdigest().encode() != digest:
        raise LocalSnapshotError(f"{path} is damaged: its checksum does not match.")
    head, _, body = rest.partition(b"\n")
    try:
        position, saved_at = _head(head)
        saved = orjson.loads(body)
        return LocalSnapshot(position, saved["documents"], saved["secrets"], saved_at)
    except (ValueError, KeyError, TypeError) as error:
        raise LocalSnapshotError(
            f"{path} is damaged or was written by another release: {error!r}."
        ) from error


def write(directory: Path, kept: LocalSnapshot, *, force: bool = False) -> bool:
    """Write atomically. False if the existing file is at least as new and `force` is not set. A file of an
    earlier epoch is kept as the previous one. Blocking. Raises OSError."""
    path = directory / NAME
    descriptor = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        there = _position(path)
        if there is not None and there.installation in (kept.position.installation, *kept.position.former):
            if not (force or newer(kept.position, there)):
                return False
            if there.epoch != kept.position.epoch:
                _link(path, directory / PREVIOUS)
        elif there is not None:
            _link(path, directory / PREVIOUS)
        head = {"florin_registry": _FORMAT, "at": kept.at, "position": asdict(kept.position)}
        rest = b"".join((orjson.dumps(head), b"\n", *_body(kept)))
        _replace(path, hashlib.sha256(rest).hexdigest().encode() + b"\n" + rest)
    finally:
        os.close(descriptor)
    return True


def of(position: Position, documents: dict[str, dict[str, str]], secrets: dict[str, str]) -> LocalSnapshot:
    return LocalSnapshot(position, documents, secrets, time.time_ns() // 1000)


def _body(kept: LocalSnapshot) -> Iterator[bytes]:
    """The JSON of documents and secrets, a part at a time: orjson holds Python's lock, and with it the event
    loop, until it returns."""
    yield b'{"documents":{'
    for number, (kind, texts) in enumerate(kept.documents.items()):
        yield b"%b%b:{" % (b"," if number else b"", orjson.dumps(kind))
        items = iter(texts.items())
        begun = False
        while part := dict(islice(items, _PART)):
            yield (b"," if begun else b"") + orjson.dumps(part)[1:-1]
            begun = True
            time.sleep(0)  # lets go of the lock
        yield b"}"
    yield b'},"secrets":%b}' % orjson.dumps(kept.secrets)


def _content(path: Path, limit: int = -1) -> bytes:
    """Raises LocalSnapshotError if other users could have read or written the file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise LocalSnapshotError(f"{path} is not used: it is not private to this user.")
        return file.read(limit)


def _head(line: bytes) -> tuple[Position, int]:
    head = orjson.loads(line)
    if head["florin_registry"] != _FORMAT:
        raise ValueError("another format")
    return _positions.validate_python(head["position"]), int(head["at"])


def _position(path: Path) -> Position | None:
    """The position in the file's header; None if unusable."""
    try:
        return _head(_content(path, _LONGEST_HEAD).split(b"\n", 2)[1])[0]
    except (OSError, LocalSnapshotError, ValueError, KeyError, TypeError, IndexError):
        return None


def _link(path: Path, to: Path) -> None:
    with suppress(FileNotFoundError):
        to.unlink()
    with suppress(OSError):  # the file system may lack hard links
        os.link(path, to)


def _replace(path: Path, content: bytes) -> None:
    beside = path.with_name(f"{path.name}.new")  # we hold the lock, so an existing file is a leftover
    try:
        with suppress(FileNotFoundError):
            beside.unlink()
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        beside.replace(path)
    except OSError:
        with suppress(OSError):
            beside.unlink()
        raise

"""The registry as this host's workers knew it last, on disk: what a worker starts from when Redis is away or
has lost it, and what an operator puts back.

    registry-kept.json      three lines: the SHA-256 of the rest; where the registry stood, and when it was
                            written; documents and secrets. The last two are JSON
    registry-previous.json  the same, of the epoch before
    registry-kept.lock      held while one of several workers writes

Only its owner may read it: it holds the digests of keys and the installation's secrets. What is torn,
changed, open to others or not ours is refused.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import orjson
from pydantic import TypeAdapter

from adapters.store.continuity import Position
from adapters.store.protocol import Restored, Snapshot

NAME: Final = "registry-kept.json"
PREVIOUS: Final = "registry-previous.json"
_LOCK: Final = "registry-kept.lock"
_FORMAT: Final = 1
_LONGEST_HEAD: Final = 64 * 1024
_positions = TypeAdapter(Position)


class LocalSnapshotError(Exception):
    """What is there cannot be used; the message says why, in a sentence."""


@dataclass(frozen=True, slots=True)
class LocalSnapshot:
    position: Position
    documents: dict[str, dict[str, str]]
    secrets: dict[str, str]
    at: int
    """When it was written, Unix microseconds, UTC."""

    @property
    def snapshot(self) -> Snapshot:
        return Snapshot(self.position, self.documents)

    def restored(self, *, whole: bool) -> Restored:
        """`whole`: in the place of all that there is; else only what the installation cannot do without."""
        return Restored(self.documents if whole else None, self.secrets)


def newer(one: Position, other: Position) -> bool:
    return (one.epoch, one.seq) > (other.epoch, other.seq)


def read(path: Path) -> LocalSnapshot | None:
    """Blocks. None: there is none. Raises LocalSnapshotError."""
    try:
        content = _content(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LocalSnapshotError(f"{path} cannot be read: {error.strerror or error}.") from error
    digest, _, rest = content.partition(b"\n")
    if hashlib.sha256(rest).hexdigest().encode() != digest:
        raise LocalSnapshotError(f"{path} is damaged: its content is not what was written.")
    head, _, body = rest.partition(b"\n")
    try:
        position, at = _head(head)
        said = orjson.loads(body)
        return LocalSnapshot(position, said["documents"], said["secrets"], at)
    except (ValueError, KeyError, TypeError) as error:
        raise LocalSnapshotError(f"{path} is damaged, or another release's: {error!r}.") from error


def write(directory: Path, kept: LocalSnapshot, *, anyway: bool = False) -> bool:
    """Blocks. Whole or not at all; False: what is there is as new, or newer, and is not to go `anyway`. What
    an epoch before this one has left stays beside it. Raises OSError."""
    path = directory / NAME
    descriptor = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        there = _position(path)
        if there is not None and there.installation in (kept.position.installation, *kept.position.former):
            if not (anyway or newer(kept.position, there)):
                return False
            if there.epoch != kept.position.epoch:
                _link(path, directory / PREVIOUS)
        elif there is not None:
            _link(path, directory / PREVIOUS)
        head = {"florin_registry": _FORMAT, "at": kept.at, "position": asdict(kept.position)}
        body = {"documents": kept.documents, "secrets": kept.secrets}
        rest = orjson.dumps(head) + b"\n" + orjson.dumps(body)
        _replace(path, hashlib.sha256(rest).hexdigest().encode() + b"\n" + rest)
    finally:
        os.close(descriptor)
    return True


def of(position: Position, documents: dict[str, dict[str, str]], secrets: dict[str, str]) -> LocalSnapshot:
    return LocalSnapshot(position, documents, secrets, time.time_ns() // 1000)


def _content(path: Path, limit: int = -1) -> bytes:
    """Raises LocalSnapshotError for what others could have written or read."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise LocalSnapshotError(f"{path} is not a private file of this user: it is not used.")
        return file.read(limit)


def _head(line: bytes) -> tuple[Position, int]:
    said = orjson.loads(line)
    if said["florin_registry"] != _FORMAT:
        raise ValueError("another format")
    return _positions.validate_python(said["position"]), int(said["at"])


def _position(path: Path) -> Position | None:
    """What the file says of itself; None: nothing that can be used."""
    try:
        return _head(_content(path, _LONGEST_HEAD).split(b"\n", 2)[1])[0]
    except (OSError, LocalSnapshotError, ValueError, KeyError, TypeError, IndexError):
        return None


def _link(path: Path, to: Path) -> None:
    with suppress(FileNotFoundError):
        to.unlink()
    with suppress(OSError):  # a disk without hard links: then without
        os.link(path, to)


def _replace(path: Path, content: bytes) -> None:
    beside = path.with_name(f"{path.name}.new")  # under the lock: what is there, the dead have left
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

"""The store of adapter versions' files: immutable directories, named by what they hold.

    root/<digest hex>/adapter_config.json, adapter_model.safetensors
    root/.staging/<random>/files/…      being fetched and checked; moved into place by one rename
    root/.installations/<id>            whose versions lie here: nothing is removed where these are several

A version's bytes are checked where they will stay and then only renamed, so that what was checked is what
engines read. Engines may hold a file long after its version is gone: nothing here removes a published one,
and `adapters.reconcile.trash`, which does, leaves alone what was published again within the hour.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from adapters.checks.validate import FILES

_STAGING = ".staging"
_INSTALLATIONS = ".installations"


@dataclass(frozen=True, slots=True)
class Artifact:
    digest: str
    """`sha256:<hex>`, see `digest_of`."""
    path: Path
    """Absolute."""
    size_bytes: int


class ArtifactStore:
    """All methods block on the disk. Several processes, on several hosts, may share one root."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self._installation = ""  # mutable: set once, by `open`

    def __repr__(self) -> str:
        return f"<ArtifactStore {self.root}>"

    def open(self, installation: str = "") -> None:
        """Makes the root and removes what crashed processes left in staging. Call once at start.
        `installation`: an id, of a registry whose versions lie here."""
        _make_enterable(self.root)
        self._staging.mkdir(exist_ok=True, mode=0o700)
        self._installation = installation
        if installation:
            with suppress(OSError):  # `florin doctor` tells of a root that cannot be written
                _make_enterable(self.root / _INSTALLATIONS)
                (self.root / _INSTALLATIONS / installation).touch()
        for left in self._staging.iterdir():
            with suppress(FileNotFoundError):
                _remove_if_ownerless(left)

    @contextmanager
    def staging(self) -> Iterator[Path]:
        """An empty directory of this process's own, on the disk of the root. It is gone afterwards."""
        self._staging.mkdir(parents=True, exist_ok=True, mode=0o700)
        box, lock = self._locked_box()
        try:
            files = box / "files"
            files.mkdir()
            yield files
        finally:
            shutil.rmtree(box, ignore_errors=True)
            os.close(lock)

    def publish(self, staged: Path) -> Artifact:
        """Moves the two files in `staged` (a `staging` directory) to their place for ever. What else lies
        there was for the checks alone, and goes: engines would read tokenizers from beside an adapter.

        The same content again ends in the same place. When this returns, the files are on the disk.
        """
        size = sum((staged / name).stat().st_size for name in FILES)
        hexdigest = digest_of(staged)
        target = self.root / hexdigest
        artifact = Artifact(f"sha256:{hexdigest}", target, size)
        if _sizes(target) == _sizes(staged) and freshen(target):
            return artifact
        for path in staged.iterdir():
            if path.name not in FILES:
                path.unlink()
        for name in FILES:
            (staged / name).chmod(0o444)
            _sync(staged / name)
        staged.chmod(0o755)  # engines may run as other users
        freshen(staged)
        _sync(staged)
        self._move(staged, target)
        _sync(self.root)
        return artifact

    def find(self, digest: str) -> Artifact | None:
        """The published files of that digest, `sha256:<hex>`, if they are there and whole: they are read to
        know it. None: they are to be fetched."""
        hexdigest = digest.removeprefix("sha256:")
        target = self.root / hexdigest
        sizes = _sizes(target)
        if sizes is None or not freshen(target) or digest_of(target) != hexdigest:
            return None
        return Artifact(digest, target, sum(sizes.values()))

    def others(self) -> list[Path]:
        """The marks of other installations, which may need what this one does not any more."""
        try:
            marks = sorted((self.root / _INSTALLATIONS).iterdir())
        except FileNotFoundError:
            return []
        return [mark for mark in marks if mark.name != self._installation]

    @property
    def _staging(self) -> Path:
        return self.root / _STAGING

    def _locked_box(self) -> tuple[Path, int]:
        """A fresh directory and the lock that says its owner lives: the kernel frees it at any death."""
        while True:
            box = self._staging / secrets.token_hex(8)
            box.mkdir(mode=0o700)
            lock = os.open(box, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if box.exists():
                return box, lock
            os.close(lock)  # `open` elsewhere took it for a leftover between the two calls

    def _move(self, staged: Path, target: Path) -> None:
        sizes = _sizes(staged)
        try:
            staged.rename(target)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
        else:
            return
        if _sizes(target) == sizes and freshen(target):
            return  # another process published the same content a moment ago
        # It lost files or bytes, which happens only when somebody meddles with the root: the whole one
        # takes its place, and the damaged one goes with the staging box.
        with suppress(FileNotFoundError):  # or it was being removed
            target.rename(staged.parent / "damaged")
        staged.rename(target)


def digest_of(directory: Path) -> str:
    """Hex SHA-256 over one line for each of the two files, sorted by name: name, NUL, hex SHA-256 of the
    content, newline."""
    digest = hashlib.sha256()
    for name in sorted(FILES):
        with (directory / name).open("rb") as file:
            content = hashlib.file_digest(file, "sha256")
        digest.update(f"{name}\0{content.hexdigest()}\n".encode())
    return digest.hexdigest()


def freshen(directory: Path) -> bool:
    """Set its time of change to now: whoever is about to remove it, looks at that after taking it away, and
    puts it back. False: it has been taken away."""
    try:
        os.utime(directory)
    except FileNotFoundError:
        return False
    except PermissionError:
        pass  # another user's: whoever may not touch it may not remove it either
    return True


def _sizes(directory: Path) -> dict[str, int] | None:
    try:
        return {name: (directory / name).stat().st_size for name in FILES}
    except (FileNotFoundError, NotADirectoryError):
        return None


def _make_enterable(directory: Path) -> None:
    """Engines, and other installations, may run as other users: what is made here is open to them, whatever
    the umask. What exists keeps its mode."""
    if not directory.is_dir():
        _make_enterable(directory.parent)
        with suppress(FileExistsError):
            directory.mkdir()
            directory.chmod(0o755)


def _remove_if_ownerless(box: Path) -> None:
    lock = os.open(box, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(box, ignore_errors=True)
    except BlockingIOError:
        pass
    finally:
        os.close(lock)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)

"""The artifact store: the files of adapter versions, in immutable, content-addressed directories. In a bucket
instead: `adapters.registry.bucket_artifacts`.

    root/<digest hex>/adapter_config.json, adapter_model.safetensors
    root/.staging/<random>/files/…      being fetched and checked; published by one rename
    root/.installations/<id>            installations that use this root; with several, nothing is removed

A version's files are checked in place and then only renamed, so engines read exactly the bytes that were
checked. Engines may hold a file long after its version is gone, so nothing here removes a published artifact.
`adapters.reconcile.artifact_remover` does, unless the content was republished within the hour.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from adapters.checks.validate import FILES
from adapters.model import Version

_STAGING = ".staging"
_INSTALLATIONS = ".installations"


@dataclass(frozen=True, slots=True)
class Artifact:
    digest: str
    """`sha256:<hex>`, see `digest_of`."""
    location: str
    """An absolute path, or a URL in a bucket."""
    size_bytes: int

    @property
    def path(self) -> Path:
        return Path(self.location)


class ArtifactStore:
    """Content-addressed store of versions' files. Blocking. Processes on several hosts may share one root.

    All methods but `location` raise OSError."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        """Where files are received and checked, and in a directory also where they stay."""
        self._installation = ""  # mutable: set once, by `open`

    def __repr__(self) -> str:
        return f"<ArtifactStore {self.where}>"

    @property
    def where(self) -> str:
        """The directory or bucket, for operators."""
        return str(self.root)

    def location(self, digest: str) -> str:
        """Where the files with the digest `sha256:<hex>` are, or would be."""
        return f"{self.where}/{digest.removeprefix('sha256:')}"

    def open(self, installation: str = "") -> None:
        """Create the root and remove staging leftovers of crashed processes. Call once at start.
        `installation`: id of the registry whose versions are stored here."""
        _make_enterable(self.root)
        self._staging.mkdir(exist_ok=True, mode=0o700)
        self._installation = installation
        if installation:
            with suppress(OSError):  # `florin doctor` reports a root that is not writable
                _make_enterable(self.root / _INSTALLATIONS)
                (self.root / _INSTALLATIONS / installation).touch()
        for left in self._staging.iterdir():
            with suppress(FileNotFoundError):
                _remove_if_ownerless(left)

    @contextmanager
    def staging(self) -> Iterator[Path]:
        """A private empty directory on the root's disk, removed on exit."""
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
        """Publish the two files in `staged`, a `staging` directory. Other files there were only for the
        checks and are deleted, because engines would read a tokenizer beside an adapter.

        Idempotent: the same content ends in the same place. The files are synced to disk on return.
        """
        hexdigest, size = digest_of(staged), size_of(staged)
        target = self.root / hexdigest
        artifact = Artifact(f"sha256:{hexdigest}", str(target), size)
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

    @contextmanager
    def files(self, digest: str) -> Iterator[Path | None]:
        """A directory with the published files, verified by reading them, while the context lasts; None if
        they are missing or damaged."""
        hexdigest = digest.removeprefix("sha256:")
        target = self.root / hexdigest
        sound = _sizes(target) is not None and freshen(target) and digest_of(target) == hexdigest
        yield target if sound else None

    def artifact(self, digest: str, files: Path) -> Artifact:
        """The published artifact of which `files` gave the directory."""
        return Artifact(digest, self.location(digest), size_of(files))

    def readable(self, digest: str, name: str) -> Path | str | None:
        """A path at which this process can read a published file, or a URL at which anyone can for a while;
        None if it is missing, as far as that can be known without asking others."""
        path = self.root / digest.removeprefix("sha256:") / name
        return path if path.is_file() else None

    def problems(self, versions: Iterable[Version]) -> dict[str, str]:
        """Version id → what is wrong with its files, by their sizes, unless they are all there."""
        return {v.id: wrong for v in versions if (wrong := _wrong(Path(v.path), v.size_bytes))}

    def check(self) -> None:
        """Raises OSError if files cannot be stored."""
        with self.staging():
            pass

    def others(self) -> Sequence[Path | str]:
        """The marks of other installations, which may need content that this one no longer needs."""
        try:
            marks = sorted((self.root / _INSTALLATIONS).iterdir())
        except FileNotFoundError:
            return []
        return [mark for mark in marks if mark.name != self._installation]

    @property
    def _staging(self) -> Path:
        return self.root / _STAGING

    def _locked_box(self) -> tuple[Path, int]:
        """A new directory and a lock that proves its owner is alive; the kernel releases the lock when the
        process dies."""
        while True:
            box = self._staging / secrets.token_hex(8)
            box.mkdir(mode=0o700)
            lock = os.open(box, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if box.exists():
                return box, lock
            os.close(lock)  # another process's `open` removed it as a leftover between the two calls

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
            return  # another process has just published the same content
        # The published copy is incomplete, which only tampering with the root can cause. The complete copy
        # replaces it, and the damaged one is deleted with the staging directory.
        with suppress(FileNotFoundError):  # or it has just been removed
            target.rename(staged.parent / "damaged")
        staged.rename(target)


def digest_of(directory: Path) -> str:
    """Hex SHA-256 over one line per file, sorted by name: name, NUL, hex SHA-256 of the content, newline."""
    digest = hashlib.sha256()
    for name in sorted(FILES):
        with (directory / name).open("rb") as file:
            content = hashlib.file_digest(file, "sha256")
        digest.update(f"{name}\0{content.hexdigest()}\n".encode())
    return digest.hexdigest()


def size_of(directory: Path) -> int:
    return sum((directory / name).stat().st_size for name in FILES)


def freshen(directory: Path) -> bool:
    """Set the directory's modification time to now. A concurrent remover checks it after detaching the
    directory and then restores it. False if the directory has already been detached."""
    try:
        os.utime(directory)
    except FileNotFoundError:
        return False
    except PermissionError:
        pass  # another user's: a process that may not touch it may not remove it either
    return (
        directory.exists()
    )  # it may have been detached after its path was looked up, before its time was set


def _sizes(directory: Path) -> dict[str, int] | None:
    try:
        return {name: (directory / name).stat().st_size for name in FILES}
    except (FileNotFoundError, NotADirectoryError):
        return None


def _wrong(directory: Path, size: int) -> str:
    try:
        total = size_of(directory)
    except OSError as error:
        return f"{error.filename or directory} cannot be read here: {error.strerror or error}"
    return "" if total == size else f"{directory} holds {total} bytes instead of {size}"


def _make_enterable(directory: Path) -> None:
    """Create the directory readable for other users, whatever the umask, because engines and other
    installations may run as other users. An existing directory keeps its mode."""
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

"""The archive's manifest and checksums, and the pruning of old ones. See the package."""

from __future__ import annotations

import hashlib
import os
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

from pydantic import TypeAdapter, ValidationError

from adapters.progress import CHUNK, Progress, ProgressMeter, silent
from adapters.store.redis.registry_backup import RegistryContents

FORMAT: Final = 1
MANIFEST: Final = "manifest.json"
REGISTRY: Final = "registry/contents.json"
contents_codec = TypeAdapter(RegistryContents)


class BackupError(Exception):
    """Nothing was backed up or restored; the message says why, for the operator."""


@dataclass(frozen=True, slots=True)
class TableEntry:
    columns: list[str]
    rows: int
    digest: str
    """See `dump.RowsDigest`."""


@dataclass(frozen=True, slots=True)
class Manifest:
    florin_backup: int
    """The archive's format."""
    florin: str
    """Version of Florin that wrote it."""
    at: int
    """When it was begun, Unix microseconds, UTC."""
    installation: str
    epoch: int
    seq: int
    """Position of the registry."""
    artifact_root: str
    """Where versions' files were."""
    ledger_revision: str
    """Revision of the ledger's schema."""
    registry_format: int = 1
    """See `registry_format.FORMAT`."""
    documents: dict[str, int] = field(default_factory=dict)
    """Number of documents by kind."""
    tables: dict[str, TableEntry] = field(default_factory=dict)
    artifacts: dict[str, int] = field(default_factory=dict)
    """Digest hex → size in bytes."""
    missing: dict[str, str] = field(default_factory=dict)
    """Version → why its files are not in the archive."""
    members: dict[str, str] = field(default_factory=dict)
    """Name → SHA-256 hex of every other member."""


manifest_codec = TypeAdapter(Manifest)


@contextmanager
def created(path: Path) -> Iterator[zipfile.ZipFile]:
    """A new private archive that appears at `path` once it is complete. Raises BackupError if something is
    there."""
    if path.exists():
        raise BackupError(f"{path} already exists: choose another name.")
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # mode 0600
    except OSError as error:
        raise BackupError(f"{path} cannot be written: {error.strerror}.") from error
    try:
        with os.fdopen(handle, "w+b") as file:
            with zipfile.ZipFile(file, "w") as archive:
                yield archive
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(temporary, path)  # unlike a rename, it never replaces a file
        except FileExistsError:
            raise BackupError(f"{path} already exists: choose another name.") from None
        _sync_directory(path.parent)
    except OSError as error:
        raise BackupError(f"{path} cannot be written: {error.strerror or error}.") from error
    finally:
        with suppress(FileNotFoundError):
            Path(temporary).unlink()


@contextmanager
def member(
    archive: zipfile.ZipFile, name: str, members: dict[str, str], *, compressed: bool = True
) -> Iterator[HashingWriter]:
    """Write one member and note its checksum in `members`."""
    entry = zipfile.ZipInfo(name)
    entry.compress_type = zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED
    entry.external_attr = 0o600 << 16
    with archive.open(entry, "w", force_zip64=True) as file:
        writer = HashingWriter(file)
        yield writer
    members[name] = writer.hexdigest()


class HashingWriter:
    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._digest = hashlib.sha256()

    def write(self, data: bytes) -> None:
        self._digest.update(data)
        self._file.write(data)

    def hexdigest(self) -> str:
        return self._digest.hexdigest()


@contextmanager
def opened(path: Path) -> Iterator[tuple[zipfile.ZipFile, Manifest]]:
    """An archive and its manifest. The members are not checked. Raises BackupError."""
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive, _manifest(path, archive)
    except zipfile.BadZipFile as error:
        raise BackupError(f"{path} is not a complete backup: {error}.") from error
    except OSError as error:
        raise BackupError(f"{path}: {error.strerror or error}.") from error


def verify(path: Path, archive: zipfile.ZipFile, manifest: Manifest, meter: ProgressMeter) -> None:
    """Read everything and compare it with the manifest. Raises BackupError."""
    there = {entry.filename for entry in archive.infolist()} - {MANIFEST}
    if len(archive.infolist()) != len(there) + 1 or there != manifest.members.keys():
        raise BackupError(f"{path} is damaged: it does not hold what its manifest lists.")
    for name, expected in manifest.members.items():
        digest = hashlib.sha256()
        try:
            with archive.open(name) as file:
                while data := file.read(CHUNK):
                    digest.update(data)
                    meter.add(len(data))
        except (zipfile.BadZipFile, EOFError, ValueError, NotImplementedError) as error:
            raise BackupError(f"{path} is damaged: {name}: {error}") from error
        if digest.hexdigest() != expected:
            raise BackupError(f"{path} is damaged: the checksum of {name} does not match.")
    meter.tell()


def size_of(archive: zipfile.ZipFile) -> int:
    """Bytes of all members, uncompressed."""
    return sum(entry.file_size for entry in archive.infolist())


def _manifest(path: Path, archive: zipfile.ZipFile) -> Manifest:
    try:
        text = archive.read(MANIFEST)
    except KeyError:
        raise BackupError(f"{path} is not a backup of Florin: it has no manifest.") from None
    try:
        manifest = manifest_codec.validate_json(text)
    except ValidationError as error:
        raise BackupError(f"{path} is damaged, or was written by another release of Florin.") from error
    if manifest.florin_backup != FORMAT:
        raise BackupError(
            f"{path} was written by Florin {manifest.florin} in a format that this version cannot read."
        )
    return manifest


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def prune(out: Path, manifest: Manifest, keep: int, *, progress: Progress = silent) -> list[Path]:
    """Delete all but the newest `keep` backups of this installation: `out`, the new one, and those beside it
    with its suffix. Returns what was deleted.

    The new one is read back first, and only complete backups count: what cannot be read is left alone, and so
    is whatever else lies there. Raises BackupError, OSError."""
    with opened(out) as (archive, _):
        verify(out, archive, manifest, ProgressMeter("checking", progress, size_of(archive)))
    earlier = sorted(
        (taken, path) for path in out.parent.glob(f"*{out.suffix}") if (taken := _taken(path, out, manifest))
    )
    superseded = [path for _, path in earlier[: len(earlier) - (keep - 1)]] if len(earlier) >= keep else []
    for path in superseded:
        path.unlink(missing_ok=True)
    return superseded


def _taken(path: Path, out: Path, manifest: Manifest) -> int | None:
    """When an earlier backup of this installation was taken; None: it is not one."""
    if path == out or path.name.startswith(".") or path.is_symlink() or not path.is_file():
        return None
    try:
        with opened(path) as (_, other):
            return other.at if other.installation == manifest.installation else None
    except BackupError:
        return None

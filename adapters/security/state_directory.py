"""Makes the state directory private to its owner, whatever its mode and the umask."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

log = logging.getLogger(__name__)

UMASK = 0o077
OWN = ("valkey", "usage", "ledger.db", "ledger.db-*", "metrics-*", "florin-export-*", "registry-*")
"""Florin's entries in the state directory. Only these are changed, because the directory may be shared."""
NOT_FOREIGN = ("artifacts", "lost+found")
"""Other permitted entries. Artifacts keep their modes, because engines of another user may read them."""


@dataclass(frozen=True, slots=True)
class Found:
    open_to_others: tuple[Path, ...]
    """Florin's entries that others can access, and the directory itself if only Florin uses it."""
    foreign: tuple[str, ...]
    """Names of foreign entries."""
    shared: bool
    """Others can enter the directory, and Florin is not its only user."""


def inspect(directory: Path) -> Found:
    """Inspect the directory. Blocking. Raises OSError if it cannot be read."""
    names = sorted(path.name for path in directory.iterdir())
    own = [name for name in names if any(fnmatch(name, pattern) for pattern in OWN)]
    foreign = [name for name in names if name not in own and name not in NOT_FOREIGN]
    mode = directory.stat().st_mode
    alone = not foreign and not mode & stat.S_ISVTX  # a sticky directory such as /tmp is shared
    exposed = [path for name in own for path in _open_to_others(directory / name)]
    if alone and mode & 0o077:
        exposed.insert(0, directory)
    return Found(tuple(exposed), tuple(foreign), shared=not alone and bool(mode & 0o077))


def make_private(directory: Path) -> None:
    """Create the directory if needed, and revoke others' access to it and to Florin's entries. Call at start.
    Blocking. Raises OSError if the directory cannot be created or read."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    inspection = inspect(directory)
    refused = [f"{path} ({error})" for path in inspection.open_to_others if (error := _close(path))]
    closed = len(inspection.open_to_others) - len(refused)
    if closed:
        log.warning(
            "FLORIN_STATE_DIR: revoked others' access to %d files and directories in %s",
            *(closed, directory),
        )
    if refused:
        log.error(
            "FLORIN_STATE_DIR: others can access %s: chown it to Florin's user, or chmod go-rwx",
            ", ".join(refused[:5]),
        )
    if inspection.shared:
        log.warning(
            "FLORIN_STATE_DIR: others can enter %s, which contains foreign files (such as %s). "
            "Florin's files are private, but Florin should have its own directory.",
            *(directory, inspection.foreign[0] if inspection.foreign else "none yet"),
        )


def _close(path: Path) -> str:
    """Revoke others' access. Returns the error, or empty on success or if the path is gone."""
    try:
        path.chmod(stat.S_IMODE(path.lstat().st_mode) & 0o700)
    except FileNotFoundError:
        return ""
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _open_to_others(top: Path) -> Iterator[Path]:
    """`top` and everything below it that others can access. Links are not followed, because their targets are
    not Florin's."""
    for place, directories, files in os.walk(top):
        yield from (path for path in (Path(place, name) for name in files) if _is_open(path))
        yield from (path for path in (Path(place, name) for name in directories) if _is_open(path))
    if _is_open(top):
        yield top


def _is_open(path: Path) -> bool:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return False
    return not stat.S_ISLNK(mode) and bool(mode & 0o077)

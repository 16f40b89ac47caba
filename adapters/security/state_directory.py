"""A state directory is for its owner only, whatever its mode and the umask were before."""

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
"""What Florin keeps in its state directory. Only this is ever changed: the directory may be shared."""
NOT_FOREIGN = ("artifacts", "lost+found")
"""What may lie there besides. Engines of another user may read artifacts, so they are left as they are."""


@dataclass(frozen=True, slots=True)
class Found:
    open_to_others: tuple[Path, ...]
    """Florin's own, and the directory itself if it is Florin's alone."""
    foreign: tuple[str, ...]
    """Names of what is not Florin's."""
    shared: bool
    """Others can enter, and the directory is not Florin's alone."""


def inspect(directory: Path) -> Found:
    """Blocking. Raises OSError when the directory cannot be read."""
    names = sorted(path.name for path in directory.iterdir())
    own = [name for name in names if any(fnmatch(name, pattern) for pattern in OWN)]
    foreign = [name for name in names if name not in own and name not in NOT_FOREIGN]
    mode = directory.stat().st_mode
    alone = not foreign and not mode & stat.S_ISVTX  # /tmp is nobody's own
    exposed = [path for name in own for path in _open_to_others(directory / name)]
    if alone and mode & 0o077:
        exposed.insert(0, directory)
    return Found(tuple(exposed), tuple(foreign), shared=not alone and bool(mode & 0o077))


def make_private(directory: Path) -> None:
    """Close the directory to others, and all of Florin's that is in it. Blocking, at start. Raises OSError
    when the directory cannot be made or read."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = inspect(directory)
    refused = [f"{path} ({error})" for path in found.open_to_others if (error := _close(path))]
    closed = len(found.open_to_others) - len(refused)
    if closed:
        log.warning(
            "FLORIN_STATE_DIR: %d files and directories in %s were open to others, and no longer are.",
            *(closed, directory),
        )
    if refused:
        log.error(
            "FLORIN_STATE_DIR: others can get at %s: chown it to Florin's user, or chmod go-rwx.",
            ", ".join(refused[:5]),
        )
    if found.shared:
        log.warning(
            "FLORIN_STATE_DIR: others can enter %s, which holds files that are not Florin's (%s, for one). "
            "Florin's own are closed to them; better give Florin a directory of its own.",
            *(directory, found.foreign[0] if found.foreign else "none yet"),
        )


def _close(path: Path) -> str:
    """Why it could not be closed; empty: it was, or it is gone."""
    try:
        path.chmod(stat.S_IMODE(path.lstat().st_mode) & 0o700)
    except FileNotFoundError:
        return ""
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _open_to_others(top: Path) -> Iterator[Path]:
    """`top` and what is below it. Links are not followed: where they lead is not Florin's."""
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

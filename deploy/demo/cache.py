"""Builds things once per machine in the user's cache, under a lock and atomically."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

COMPLETE = ".complete"
"""Marker file, written last. A directory without it is left from an interrupted build and is rebuilt."""


def cache_home() -> Path:
    """Florin's directory in the user's cache (XDG_CACHE_HOME, default ~/.cache). Links are followed, because
    some of what is built depends on its own path."""
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return (Path(home).expanduser() / "florin").resolve()


def digest(*parts: bytes | str) -> str:
    hasher = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        hasher.update(len(data).to_bytes(8, "big") + data)
    return hasher.hexdigest()[:16]


@contextmanager
def locked(path: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """An exclusive lock that the kernel releases when its holder dies. Calls `on_wait` once if it is held."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def built(
    name: str,
    build: Callable[[Path], None],
    on_wait: Callable[[], None] = lambda: None,
    *,
    usable: Callable[[Path], bool] = lambda _: True,
) -> Path:
    """Return the cache directory `name`, calling `build(directory)` if it does not exist or is not `usable`.

    Concurrent callers wait for the one that builds. Exceptions of `build` propagate, and the next call starts
    over. Built in place, because virtual environments cannot be moved.
    """
    directory = cache_home() / name

    def ready() -> bool:
        return (directory / COMPLETE).exists() and usable(directory)

    if ready():
        return directory
    with locked(directory.with_name(f"{name}.lock"), on_wait):
        if not ready():
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir(parents=True)
            build(directory)
            (directory / COMPLETE).touch()
    return directory

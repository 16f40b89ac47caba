"""A listener on a Unix socket (`FLORIN_UDS`)."""

from __future__ import annotations

import errno
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gateway.serving.runner import ServerStartError

_MODE = 0o660
"""A proxy with another user joins the group, or the folder has the proxy's group and the setgid bit."""


@contextmanager
def bound(path: Path) -> Iterator[socket.socket]:
    """A socket that listens on `path`. Replaces the socket of a gateway that was killed. Removes the file at
    the end, unless another gateway listens there by then. Raises ServerStartError."""
    listener = socket.socket(socket.AF_UNIX)
    try:
        _remove_stale(path)
        listener.bind(str(path))
        listener.listen()  # now, so that it is not taken for stale while the workers start
        path.chmod(_MODE)
    except OSError as error:
        listener.close()
        raise ServerStartError(_explain(error, path)) from error
    listener.setblocking(False)
    try:
        with listener:
            yield listener
    finally:
        with suppress(OSError):
            _remove_stale(path)


def _remove_stale(path: Path) -> None:
    """Remove a stale socket, one without a listener."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise FileExistsError(errno.EEXIST, "it exists and is not a socket")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
        except BlockingIOError:  # in use: its queue is full
            pass


def _explain(error: OSError, path: Path) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"FLORIN_UDS: another process listens on {path}. Stop it, or choose another path."
    return f"FLORIN_UDS: cannot listen on {path}: {error.strerror or error}."

"""Whether a process has a controlling terminal."""

from __future__ import annotations

import errno
import os


def has_terminal() -> bool:
    """Whether SIGHUP may come of a terminal that closes. Services and containers have none: there it asks to
    read something again."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError as error:
        return error.errno == errno.EIO  # it has just been closed
    return True

"""Whether a process has a controlling terminal."""

from __future__ import annotations

import os


def has_terminal() -> bool:
    """Whether SIGHUP may come of a terminal that closes. Services and containers have none: there it asks to
    read something again. To be asked at the start: a closed one is none any more."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True

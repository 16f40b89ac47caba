"""Detects a controlling terminal."""

from __future__ import annotations

import os


def has_terminal() -> bool:
    """Whether SIGHUP may mean that the terminal was closed. Services and containers have no terminal, so
    there it means reload. Call it at start, since a closed terminal no longer counts."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True

"""On the PYTHONPATH of a process under test: its wall clock is off by as many seconds as the file says that
FLORIN_TEST_CLOCK names. Monotonic clocks go on, as they do when a host's clock is set."""

from __future__ import annotations

import os
import time
from pathlib import Path

_FILE = os.environ.get("FLORIN_TEST_CLOCK", "")
_time_ns = time.time_ns


def _stepped_ns() -> int:
    try:
        return _time_ns() + round(float(Path(_FILE).read_text()) * 1e9)
    except (OSError, ValueError):  # being written
        return _time_ns()


if _FILE:
    time.time_ns = _stepped_ns
    time.time = lambda: _stepped_ns() / 1e9

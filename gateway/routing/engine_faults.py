"""Counts malformed engine responses, and logs them once a minute."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

log = logging.getLogger(__name__)

LOG_SECONDS = 60.0


class EngineFaults:
    """Mutable: when each engine's faults of each kind were last logged. Operators name engines, so there are
    few."""

    def __init__(
        self, count: Callable[[str, str], None], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`count(engine, kind)` is called for each fault."""
        self._count = count
        self._clock = clock
        self._logged: dict[tuple[str, str], float] = {}

    def note(self, engine: str, kind: str, words: str) -> None:
        self._count(engine, kind)
        now = self._clock()
        last = self._logged.get((engine, kind))
        if last is None or now - last >= LOG_SECONDS:
            self._logged[engine, kind] = now
            log.warning("Engine %s: malformed response (%s): %s", engine, kind, words[:500])

"""Fields that no table knows: each is logged once, so that somebody may look whether to pass it."""

from __future__ import annotations

import logging
from collections.abc import Iterable

log = logging.getLogger(__name__)

MAX_NAMES = 200
"""Clients choose the names; beyond so many, no more are kept or logged."""


class UnknownFields:
    def __init__(self) -> None:
        # Mutable state: the names that are in the log already.
        self._seen: set[str] = set()

    def note(self, names: Iterable[str]) -> None:
        for name in names:
            if name not in self._seen and len(self._seen) < MAX_NAMES:
                self._seen.add(name)
                log.debug("Request field %r is unknown and was left out", name)

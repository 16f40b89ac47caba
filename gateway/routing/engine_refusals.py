"""Tells the operator why engines refuse requests, where the client is not told."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from gateway.observability.conditions import Condition
from gateway.routing.engine_messages import Refusal, reason

log = logging.getLogger(__name__)

LOG_SECONDS: Final = 60.0
SHOWN_SECONDS: Final = 3600.0
"""How long `florin doctor` shows that an engine lacks a flag, after the last request that needed it."""


class EngineRefusals:
    """Logs reasons once a minute for each engine and flag. Clients cannot make it log what they wrote.

    Mutable: when each was last seen and logged. Operators name engines, and flags are known, so there are
    few."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._logged: dict[tuple[str, str], float] = {}
        self._missing: dict[tuple[str, str], float] = {}

    def note(self, engine: str, error: dict[str, Any], refusal: Refusal) -> None:
        """An engine has refused a request with this error, which the client is told as `refusal`."""
        if not refusal.hides:
            return
        now, what = self._clock(), (engine, refusal.missing)
        if refusal.missing:
            self._missing[what] = now
        last = self._logged.get(what)
        if last is not None and now - last < LOG_SECONDS:
            return
        self._logged[what] = now
        if refusal.missing:
            log.warning("Engine %s refuses requests: it was started without %s", engine, refusal.missing)
        else:
            words = reason(error) or "it quotes the request; see the engine's own log"
            log.info("Engine %s refused a request: %s", engine, words)

    def conditions(self) -> Iterator[Condition]:
        """The flags that engines lack, according to recent requests."""
        now = self._clock()
        for (engine, missing), seen in sorted(self._missing.items()):
            if now - seen < SHOWN_SECONDS:
                message = f"It was started without {missing}, and refuses requests that need it."
                yield Condition("engine_lacks_flag", engine, message)

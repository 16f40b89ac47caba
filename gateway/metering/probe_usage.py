"""Token usage of Florin's own probes: no tenant pays for it, but the engines' counters include it.

Kept in memory and written every few seconds, like engine time. A killed worker loses its last few seconds,
which reconciliation then shows as unexplained.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from adapters.model import Engine
from adapters.placement.fingerprint import CONTEXTS, ProbeAnswer
from gateway.metering.ledger.database import REFUSALS, LedgerUnavailableError, insert, is_definite
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import engine_probes
from gateway.metering.token_counts import plausible
from gateway.runtime.clock import system_time

log = logging.getLogger("florin.metering")

_MOST = 10_000
"""Most probes that may wait for the ledger."""


@dataclass(slots=True)
class ProbeLog:
    ledger: Ledger
    interval: float
    clock: Callable[[], int] = system_time
    """Unix microseconds, UTC."""
    # Mutable state. The event loop appends; the writer, under the lock, removes from the front.
    _rows: list[dict[str, Any]] = field(default_factory=list)
    _writing: threading.Lock = field(default_factory=threading.Lock)

    def probed(self, engine: Engine, answer: ProbeAnswer, prompts: int = len(CONTEXTS)) -> None:
        """Record a probe's usage. Implausible counts are dropped; reconciliation shows what the engine
        counted."""
        counts = answer.prompt_tokens, answer.completion_tokens, answer.cached_tokens, 0
        if not plausible(*counts, prompts=prompts, choices=prompts):
            log.warning("Engine %s: implausible token counts of a probe: %.200r", engine.name, counts)
        elif len(self._rows) < _MOST:
            self._rows.append(
                {
                    "id": secrets.token_hex(16),
                    "engine": engine.name,
                    "at": self.clock(),
                    "prompt_tokens": answer.prompt_tokens,
                    "cached_tokens": answer.cached_tokens or 0,
                    "completion_tokens": answer.completion_tokens,
                }
            )

    async def run(self) -> None:
        """Write until cancelled; then call `close`."""
        while True:
            await asyncio.sleep(self.interval)
            await self.close()

    async def close(self) -> None:
        if self._rows:
            await asyncio.to_thread(self.write)

    def write(self) -> bool:
        """Write what is pending. False if the ledger is unavailable; the rest is kept then."""
        with self._writing:
            rows = list(self._rows)
            if not rows:
                return True
            try:
                self._put(rows)
            except LedgerUnavailableError as error:
                log.warning("Ledger: %s Probe usage is kept in memory.", error)
                return False
            del self._rows[: len(rows)]
            return True

    def _put(self, rows: list[dict[str, Any]]) -> None:
        """Insert all rows at once or, if the database refuses, in halves, until the refused row is alone and
        dropped. Rows that exist are skipped. Raises LedgerUnavailableError."""
        try:
            with self.ledger.write() as connection:
                connection.execute(insert(connection, engine_probes).on_conflict_do_nothing(), rows)
        except REFUSALS as error:
            if not is_definite(error):
                raise
            if len(rows) == 1:
                log.error("Dropped probe usage that the ledger cannot store: %s: %.500r", error, rows[0])
                return
            for half in (rows[: len(rows) // 2], rows[len(rows) // 2 :]):
                self._put(half)

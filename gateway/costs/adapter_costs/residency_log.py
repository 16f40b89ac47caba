"""Records when versions hold slots of engines, so that the slots of rarely used adapters can be priced.

Sampled from the placement once a minute, by the one worker that holds the role. What is seen at two samples
in a row was there in between; a gap of more than `BRIDGE` ends the span. So a slot held for seconds may be
missed, and one that is held for days is right to the minute.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import select

from adapters.model import Engine
from gateway.costs.selling.residency import BRIDGE
from gateway.metering.ledger.database import insert
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import residency_spans as table

ROLE: Final = "residency-log"
SAMPLE_SECONDS: Final = 60.0
_PART: Final = 500

Held = Callable[[], Iterable[tuple[Engine, Iterable[str]]]]
"""The engines, each with the full names of the versions that hold its slots."""


@dataclass(slots=True)
class ResidencyLog:
    """Every worker has one; the one that holds the role writes."""

    ledger: Ledger
    now: Callable[[], int]
    """Unix microseconds, UTC."""
    held: Held
    # Mutable: (engine, version) → start of the open span, and when it was last seen.
    _open: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)

    async def work(self) -> None:
        """A leader's pass. Raises LedgerUnavailableError."""
        # Read on the event loop, where the placement changes.
        rows = [_row(engine, version) for engine, versions in self.held() for version in versions]
        await asyncio.to_thread(self.sample, rows)

    def sample(self, rows: list[dict[str, Any]]) -> None:
        """Extend the open spans of what is held now, and begin those of what is new. Raises
        LedgerUnavailableError."""
        now = self.now()
        if not self._open:
            self._open = self._resumed(now)
        slots: dict[tuple[str, str], tuple[int, int]] = {}
        for row in rows:
            key = row["engine"], row["version"]
            started, seen = self._open.get(key, (now, now))
            if now - seen > BRIDGE or seen > now:
                started = now
            slots[key] = started, now
            row |= {"started": started, "seen": now}
        with self.ledger.write() as connection:
            for first in range(0, len(rows), _PART):
                put = insert(connection, table)
                put = put.on_conflict_do_update(
                    index_elements=list(table.primary_key.columns),
                    set_={"seen": put.excluded.seen, "slots": put.excluded.slots},
                    where=put.excluded.seen > table.c.seen,
                )
                connection.execute(put, rows[first : first + _PART])
        self._open = slots

    def _resumed(self, now: int) -> dict[tuple[str, str], tuple[int, int]]:
        """The spans that another worker, or this one before a restart, has left open."""
        query = select(table.c.engine, table.c.version, table.c.started, table.c.seen).where(
            table.c.seen >= now - BRIDGE
        )
        with self.ledger.read() as connection:
            return {(e, v): (started, seen) for e, v, started, seen in connection.execute(query)}


def _row(engine: Engine, version: str) -> dict[str, Any]:
    return {
        "engine": engine.name,
        "version": version,
        "slots": engine.slots,
        "gpu_type": engine.gpu_type,
        "gpu_count": engine.gpu_count,
        "region": engine.region,
        "purchase": engine.purchase,
    }

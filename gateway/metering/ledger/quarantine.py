"""Records that the ledger could not accept, for a person to examine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import func, select

from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import quarantine


@dataclass(frozen=True, slots=True)
class Quarantined:
    id: str
    reason: str
    """`differs`: the ledger has this id with other content. `pruned`: it arrived after the records of its
    time were pruned. `excluded`: an operator excluded it."""
    recorded_at: int
    record: dict[str, Any]
    """As it was shipped: the fields of a UsageRecord."""


def quarantined(ledger: Ledger, limit: int = 100) -> list[Quarantined]:
    """Newest first. Raises LedgerUnavailableError."""
    q = quarantine.c
    query = select(quarantine).order_by(q.recorded_at.desc(), q.id, q.digest).limit(limit)
    with ledger.read() as connection:
        return [
            Quarantined(r.id, r.reason, r.recorded_at, orjson.loads(r.content))
            for r in connection.execute(query)
        ]


def quarantined_count(ledger: Ledger) -> int:
    """Raises LedgerUnavailableError."""
    with ledger.read() as connection:
        return connection.execute(select(func.count()).select_from(quarantine)).scalar_one()

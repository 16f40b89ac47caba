"""Which audit entries the receiver of audit events has not taken yet.

Entries of Redis arrive here late and out of order, so a position in the log would pass over some. Instead, an
entry's key is queued in the transaction that stores the entry, and removed once the entry was delivered.
Nothing is queued before the stream has begun (`event_streams` has a row of it).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, delete, select

from gateway.metering.ledger.database import insert
from gateway.metering.ledger.schema import audit_log, audit_outbox, event_streams

STREAM = "audit"
_KEY = ("id", "digest", "at", "seq")


def queue(connection: Connection, keys: Sequence[dict[str, Any]]) -> None:
    """Entries that this transaction has stored."""
    begun = select(1).where(event_streams.c.name == STREAM)
    if keys and connection.execute(begun).first() is not None:
        connection.execute(insert(connection, audit_outbox).on_conflict_do_nothing(), keys)


def queue_since(connection: Connection, since: int) -> int:
    """Queue the entries since then again. Returns how many were not in the queue."""
    entries = select(*(audit_log.c[name] for name in _KEY)).where(audit_log.c.at >= since)
    put = insert(connection, audit_outbox).from_select(_KEY, entries).on_conflict_do_nothing()
    return connection.execute(put, execution_options={"preserve_rowcount": True}).rowcount


def drop_before(connection: Connection, until: int) -> int:
    """Drop queued entries older than that. Returns how many."""
    return connection.execute(delete(audit_outbox).where(audit_outbox.c.at < until)).rowcount

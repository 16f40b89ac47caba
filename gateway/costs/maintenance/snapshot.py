"""Results of the maintenance job, stored in the ledger as named JSON documents. Integers have at most 64
bits."""

from __future__ import annotations

from typing import Any

import orjson
from sqlalchemy import select

from gateway.metering.ledger.database import insert
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import snapshots


def read_snapshot(ledger: Ledger, name: str, *, after: int = -1) -> Any:
    """None if there is none, or none after `after` (Unix microseconds). Raises LedgerUnavailableError."""
    query = select(snapshots.c.document).where(snapshots.c.name == name, snapshots.c.at > after)
    with ledger.read() as connection:
        text = connection.execute(query).scalar_one_or_none()
    return None if text is None else orjson.loads(text)


def write_snapshot(ledger: Ledger, name: str, taken_at: int, document: Any) -> None:
    """Store it, unless a pass that began later already has. Raises LedgerUnavailableError."""
    with ledger.write() as connection:
        put = insert(connection, snapshots).values(
            name=name, at=taken_at, document=orjson.dumps(document).decode()
        )
        connection.execute(
            put.on_conflict_do_update(
                index_elements=["name"],
                set_={"at": put.excluded.at, "document": put.excluded.document},
                where=put.excluded.at > snapshots.c.at,
            )
        )

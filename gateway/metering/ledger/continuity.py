"""Whether the ledger still has what it acknowledged.

A PostgreSQL server that is promoted after its primary died may lack the last commits, which the primary had
acknowledged; a restored backup lacks more. Write transactions commit in the order of their batch numbers, and
replicas apply them in that order. So a record in its batch proves that all earlier batches are there, too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

from sqlalchemy import Connection, select

from gateway.metering.ledger.database import insert_in
from gateway.metering.ledger.schema import ledger_state, quarantine, usage_records


def next_batch(connection: Connection) -> int:
    """The number of this write transaction. Transactions commit in this order, because the others wait here;
    so whoever sees a batch sees all earlier ones."""
    number: int = connection.execute(_count_up(connection.dialect.name)).scalar_one()
    return number


@cache
def _count_up(dialect: str) -> Any:
    put = insert_in(dialect, ledger_state).values(name="batch", value=1)
    put = put.on_conflict_do_update(index_elements=["name"], set_={"value": ledger_state.c.value + 1})
    return put.returning(ledger_state.c.value)


@dataclass(frozen=True, slots=True, order=True)
class Mark:
    """A record, and the batch that it was stored in."""

    batch: int
    id: str


def mark_of(connection: Connection, ids: Collection[str], new: Collection[str], batch: int) -> Mark | None:
    """Proves, after the commit of this `batch`, that these records are stored; `new`: those that it added."""
    if new:
        return Mark(batch, max(new))
    table = usage_records.c
    query = select(table.batch, table.id).where(table.id.in_(ids)).order_by(table.batch.desc()).limit(1)
    row = connection.execute(query).first()
    return Mark(*row) if row else None


def lost(connection: Connection, marks: Collection[Mark]) -> list[Mark]:
    """Marks that the ledger no longer has, although it acknowledged them."""
    table = usage_records.c
    query = select(table.batch, table.id).where(table.id.in_({mark.id for mark in marks}))
    stored = {Mark(*row) for row in connection.execute(query)}
    missing = [mark for mark in marks if mark not in stored]
    gone = excluded(connection, {mark.id for mark in missing})
    return [mark for mark in missing if mark.id not in gone]


def excluded(connection: Connection, ids: Iterable[str]) -> set[str]:
    """Those of these records that an operator has removed from the ledger."""
    q = quarantine.c
    query = select(q.id).where(q.id.in_(list(ids)), q.reason == "excluded")
    return set(connection.execute(query).scalars())

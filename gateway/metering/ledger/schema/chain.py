"""What was written to the books, in order: see `gateway.metering.ledger.chain`."""

from __future__ import annotations

from sqlalchemy import Column, Index, String, Table, Text

from gateway.metering.ledger.schema.metadata import AutoId, schema

ledger_chain = Table(
    "ledger_chain",
    schema,
    Column("number", AutoId, primary_key=True, autoincrement=False, comment="1, 2, 3 … without gaps"),
    Column("kind", String(16), nullable=False, comment="see gateway.metering.ledger.chain.KINDS"),
    Column("subject", Text, nullable=False, comment="JSON: the key of the rows that were written"),
    Column("content", String(64), nullable=False, comment="SHA-256 of these rows; empty: removed"),
    Column("hash", String(64), nullable=False, comment="SHA-256 of the entry and the hash before"),
    Index("ledger_chain_by_kind", "kind", "number"),
    comment="what was written to the books, each entry with the hash of the one before. Append-only: "
    "triggers reject changes",
)

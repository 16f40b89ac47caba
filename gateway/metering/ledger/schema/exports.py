"""Files that were exported by schedule."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, String, Table, Text

from gateway.metering.ledger.schema.metadata import schema

scheduled_exports = Table(
    "scheduled_exports",
    schema,
    Column("object", Text, primary_key=True, comment="URI of the file"),
    Column("month", String(7), nullable=False),
    Column("state", String(8), nullable=False, comment="`open`, or `closed`: the file is final"),
    Column("digest", String(64), nullable=False, comment="SHA-256 of the file, hex"),
    Column("rows", BigInteger, nullable=False),
    Column("size", BigInteger, nullable=False, comment="bytes"),
    Column("written_at", BigInteger, nullable=False, comment="when this content was written"),
    Column("checked_at", BigInteger, nullable=False, comment="when it was last known to be current"),
    comment="one row per file, replaced when the file is",
)

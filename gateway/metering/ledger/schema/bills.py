"""The GPU provider's bills."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, String, Table, Text, UniqueConstraint

from gateway.metering.ledger.schema.metadata import AutoId, schema

bill_lines = Table(
    "bill_lines",
    schema,
    Column("id", AutoId, primary_key=True),
    Column("source", String(64), nullable=False, comment="SHA-256 of the file"),
    Column("line", BigInteger, nullable=False),
    Column("file_name", Text, nullable=False),
    Column("imported_at", BigInteger, nullable=False),
    Column("start", BigInteger, nullable=False),
    Column("end", BigInteger, nullable=False),
    Column("resource", Text, nullable=False, comment="the provider's name for it; possibly an engine's name"),
    Column("gpu_type", Text, nullable=False),
    Column("region", Text, nullable=False),
    Column("purchase", String(16), nullable=False),
    Column("nano_gpu_hours", BigInteger, nullable=False),
    Column("cost", Text, nullable=False, comment="exact decimal"),
    Column("currency", String(3), nullable=False),
    Column("description", Text, nullable=False),
    UniqueConstraint("source", "line"),
    Index("bill_lines_by_time", "start"),
    comment="imported lines of the GPU provider's bills",
)

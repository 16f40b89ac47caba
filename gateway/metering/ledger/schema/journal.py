"""Who did what, and what the last maintenance found."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, String, Table, Text

from gateway.metering.ledger.schema.metadata import schema

audit_log = Table(
    "audit_log",
    schema,
    Column("id", Text, primary_key=True, comment="`<ms>-<n>` of Redis' stream, or `<ms>-<random>`"),
    Column(
        "digest",
        String(64),
        primary_key=True,
        comment="SHA-256 of the note: see gateway.metering.ledger.audit_log",
    ),
    Column("at", BigInteger, nullable=False, comment="by the clock of its first writer"),
    Column("seq", BigInteger, nullable=False, comment="order within a millisecond"),
    Column("actor", Text, nullable=False, comment="`key:<id>`, `bootstrap`, or a part of Florin"),
    Column("action", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("version", Text, nullable=False),
    Column("details", Text, nullable=False, comment="JSON"),
    Index("audit_log_by_time", "at", "seq", "id", "digest"),
    Index("audit_log_by_subject", "subject", "at", "seq", "id", "digest"),
    comment="who did what to what. Append-only: triggers reject changes",
)

snapshots = Table(
    "snapshots",
    schema,
    Column("name", String(40), primary_key=True),
    Column("at", BigInteger, nullable=False),
    Column("document", Text, nullable=False),
    comment="results of the last ledger maintenance, for every worker's metrics",
)

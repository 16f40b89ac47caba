"""What is sent to other systems as events, and how far."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, String, Table, Text, text

from gateway.metering.ledger.schema.metadata import schema

event_streams = Table(
    "event_streams",
    schema,
    Column("name", String(16), primary_key=True, comment="`audit` or `usage`"),
    Column("begun_at", BigInteger, nullable=False, comment="events since then are sent"),
    Column(
        "batch",
        BigInteger,
        nullable=False,
        server_default=text("0"),
        comment="of `usage`: position of the last delivered record, with record_id",
    ),
    Column("record_id", String(36), nullable=False, server_default=text("''")),
    Column("advanced_at", BigInteger, comment="when the receiver last took what waited"),
    Column("failure", Text, nullable=False, server_default=text("''"), comment="of the last attempt"),
    comment="a stream has a row once a gateway was told where to send it",
)

audit_outbox = Table(
    "audit_outbox",
    schema,
    Column("id", Text, primary_key=True),
    Column("digest", String(64), primary_key=True),
    Column("at", BigInteger, nullable=False),
    Column("seq", BigInteger, nullable=False),
    Index("audit_outbox_by_time", "at", "seq", "id", "digest"),
    comment="keys of audit entries that the receiver of audit events has not taken yet",
)

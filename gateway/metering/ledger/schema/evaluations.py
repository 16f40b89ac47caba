"""Evaluations of adapters' versions. Their requests are in `batches`."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Index, LargeBinary, String, Table, Text

from gateway.metering.ledger.schema.metadata import schema

evaluations = Table(
    "evaluations",
    schema,
    Column("id", String(40), primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("tenant_since", BigInteger, nullable=False, comment="when the tenant was added: names recur"),
    Column("adapter", Text, nullable=False, comment="full name"),
    Column("version", BigInteger, nullable=False, comment="number"),
    Column("digest", Text, nullable=False, comment="of the version's files"),
    Column("against", Text, nullable=False, comment="a version or base model; empty: none"),
    Column("against_digest", Text, nullable=False, comment="empty for a base model"),
    Column("plan", Text, nullable=False, comment="JSON: metric, parameters and what is to be passed"),
    Column("data_sha256", String(64), nullable=False),
    Column("cases", BigInteger, nullable=False),
    Column("status", String(16), nullable=False, comment="`answering`, `judging`, `completed` or `failed`"),
    Column("batch", String(40), nullable=False, comment="of the cases"),
    Column("judge_batch", String(40), nullable=False, comment="of the judge; empty: none, or not yet"),
    Column("key_id", Text, nullable=False, comment="the key under which its batches run"),
    Column("actor", Text, nullable=False, comment="who started it, as in the audit"),
    Column("created_at", BigInteger, nullable=False),
    Column("ended_at", BigInteger),
    Column("passed", Boolean, comment="null: not ended, or nothing to pass"),
    Column("summary", Text, nullable=False, comment="JSON, once it has ended; empty before"),
    Column("lease_until", BigInteger, nullable=False, comment="until when a worker advances it"),
    Column("data", LargeBinary, comment="the held-out set, until it has ended"),
    Index("evaluations_by_adapter", "adapter", "created_at", "id"),
    Index("evaluations_by_status", "status"),
    comment="evaluations of adapters' versions",
)

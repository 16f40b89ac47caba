"""When engines were up, and what they counted themselves."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, String, Table, Text, text

from gateway.metering.ledger.schema.metadata import schema

engine_spans = Table(
    "engine_spans",
    schema,
    Column("engine", Text, primary_key=True),
    Column("worker", Text, primary_key=True),
    Column("started", BigInteger, primary_key=True),
    Column("phase", String(8), primary_key=True, comment="`startup` or `up`"),
    Column(
        "seen", BigInteger, nullable=False, comment="end of the span: when it was last seen in this phase"
    ),
    Column("gpu_type", Text, nullable=False),
    Column("gpu_count", BigInteger, nullable=False),
    Column("region", Text, nullable=False),
    Column("purchase", String(16), nullable=False),
    Column("base_model", Text, nullable=False),
    Column(
        "tenant",
        Text,
        nullable=False,
        server_default=text("''"),
        comment="for whom it was set aside; empty: nobody",
    ),
    Index("engine_spans_by_time", "seen"),
    comment="when each worker saw each engine alive; their union is the provisioned time",
)

engine_counters = Table(
    "engine_counters",
    schema,
    Column("engine", Text, primary_key=True),
    Column("epoch", BigInteger, primary_key=True, comment="when this engine process started"),
    Column("hour", BigInteger, primary_key=True),
    Column("at", BigInteger, nullable=False, comment="time of the sample, the latest of the hour"),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("cached_tokens", BigInteger),
    Column("completion_tokens", BigInteger, nullable=False),
    comment="the engines' own counters, cumulative since the epoch",
)

engine_probes = Table(
    "engine_probes",
    schema,
    Column("id", String(32), primary_key=True),
    Column("engine", Text, nullable=False),
    Column("at", BigInteger, nullable=False, comment="when the answer arrived"),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("cached_tokens", BigInteger, nullable=False, comment="part of the prompt tokens"),
    Column("completion_tokens", BigInteger, nullable=False),
    Index("engine_probes_by_engine", "engine", "at"),
    Index("engine_probes_by_time", "at"),
    comment="tokens of Florin's own requests, which verify loaded adapters",
)

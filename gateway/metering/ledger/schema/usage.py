"""What requests used: records as they arrived."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Index, String, Table, Text, text

from gateway.metering.ledger.schema.metadata import schema

ACROSS_HOURS = text("dispatched / 3600000000 < ended / 3600000000")
"""True for records that span several hours: the few that the query for an engine-hour must look for beyond
its end. A query uses the partial index only if it has exactly this condition."""

usage_records = Table(
    "usage_records",
    schema,
    Column("id", String(36), primary_key=True),
    Column("request_id", Text, nullable=False),
    Column("attempt", BigInteger, nullable=False),
    Column("tenant", Text, nullable=False),
    Column("key_id", Text, nullable=False),
    Column("adapter", Text, nullable=False),
    Column("version", Text, nullable=False),
    Column("base_model", Text, nullable=False),
    Column("engine", Text, nullable=False),
    Column("gpu_type", Text, nullable=False),
    Column("gpu_count", BigInteger, nullable=False),
    Column("dispatched", BigInteger, nullable=False),
    Column("first_token", BigInteger),
    Column("ended", BigInteger, nullable=False),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("cached_tokens", BigInteger),
    Column("completion_tokens", BigInteger, nullable=False),
    Column("reasoning_tokens", BigInteger, nullable=False),
    Column("n", BigInteger, nullable=False),
    Column("usage_source", String(16), nullable=False),
    Column("outcome", String(16), nullable=False),
    Column("billable", Boolean, nullable=False),
    Column("adapter_loads", BigInteger, nullable=False, server_default="0"),
    Column(
        "hour_marks", Text, comment="JSON [[time, prompt, cached or null, completion], …] at each full hour"
    ),
    Column(
        "batch",
        BigInteger,
        nullable=False,
        server_default="0",
        comment="number of the inserting transaction, in order of commit: what a closed period covers",
    ),
    Column("end_user", Text, comment="as the client named it, or a hash; null: it did not"),
    Column("tag", Text, comment="the request's metadata.tag, or a hash of it"),
    Column("cost_centre", Text, comment="of the key, adapter or tenant when the attempt began"),
    Column(
        "service_tier",
        String(16),
        nullable=False,
        server_default=text("''"),
        comment="`batch`: a line of a batch; empty: any other request",
    ),
    Index("usage_records_by_time", "ended", "id"),
    Index("usage_records_by_tenant", "tenant", "ended", "id"),
    Index("usage_records_by_engine", "engine", "ended"),
    Index(
        "usage_records_across_hours",
        "engine",
        "ended",
        "dispatched",
        sqlite_where=ACROSS_HOURS,
        postgresql_where=ACROSS_HOURS,
    ),
    # In order of commit: the cursor of `florin cost events`, behind which no late record can appear.
    Index("usage_records_by_batch", "batch", "id"),
    Index(
        "usage_records_with_loads",
        "ended",
        sqlite_where=text("adapter_loads > 0"),
        postgresql_where=text("adapter_loads > 0"),
    ),
    comment="one row per attempt; never changed",
)

quarantine = Table(
    "quarantine",
    schema,
    Column("id", String(36), primary_key=True),
    Column("digest", String(64), primary_key=True),
    Column("content", Text, nullable=False),
    Column("recorded_at", BigInteger, nullable=False),
    Column(
        "reason",
        String(16),
        nullable=False,
        server_default="differs",
        comment="`differs`, `pruned` or `excluded`",
    ),
    comment="records whose id is stored with other content, or that arrived after the records of their hour "
    "were pruned, or that an operator excluded: for a person to examine",
)

ledger_state = Table(
    "ledger_state",
    schema,
    Column("name", String(40), primary_key=True),
    Column("value", BigInteger, nullable=False),
    comment="`batch`: number of the last transaction; `pruned_before`: earlier records may have been "
    "removed; `identity`: a random number that tells this ledger from others",
)

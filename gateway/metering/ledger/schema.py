"""The ledger's tables, and what they mean; `migrations` creates them.

Times are Unix microseconds, UTC. Amounts of GPU-time are whole nano-GPU-hours. Months are texts like
`2026-11`. All integers fit in 64 bits; costs (nano-GPU-hours times millionths of a currency) do not, so they
are never stored, but multiplied when they are read.

A month may have 50 million records. Finance reads `rollups`; the records themselves are read in three ways,
each with an index, so that the work depends on what is requested and not on the size of the table: the hour
of an engine (to roll it up), a month in the order of (ended, id) (to close it, or by pages), and a tenant's
records. They are not partitioned by time, because an id must be unique among all records: PostgreSQL's unique
indexes cover only one partition, and without one, deduplication would depend on the shippers. There are few
indexes, because each slows every insert; all except the key's grow at their end.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    text,
)

schema = MetaData()

_Id = BigInteger().with_variant(Integer, "sqlite")  # SQLite autoincrements only INTEGER keys

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

prices = Table(
    "prices",
    schema,
    Column("id", Integer, primary_key=True),
    Column("gpu_type", Text, nullable=False),
    Column("region", Text, nullable=False),
    Column("purchase", String(16), nullable=False),
    Column("rate_micros", BigInteger, nullable=False, comment="millionths of the currency per GPU-hour"),
    Column("currency", String(3), nullable=False),
    Column("valid_from", BigInteger, nullable=False),
    Column(
        "valid_to", BigInteger, comment="null: until the next price of the same GPU type, region, purchase"
    ),
    Column("recorded_at", BigInteger, nullable=False),
    Column(
        "speedup_millis", BigInteger, comment="thousandths of the reference GPU's speed; null: not stated"
    ),
    Column("speedup_reference", Text, comment="GPU type that it is relative to"),
    Column("speedup_source", Text, comment="who measured it"),
    UniqueConstraint("gpu_type", "region", "purchase", "valid_from"),
    comment="append-only",
)

ledger_state = Table(
    "ledger_state",
    schema,
    Column("name", String(40), primary_key=True),
    Column("value", BigInteger, nullable=False),
    comment="`batch`: number of the last transaction; `pruned_before`: earlier records may have been removed",
)

dirty_hours = Table(
    "dirty_hours",
    schema,
    Column("hour", BigInteger, primary_key=True),
    Column("engine", Text, primary_key=True),
    Column("gpu_type", Text, primary_key=True),
    Column("gpu_count", BigInteger, primary_key=True),
    Column("version", BigInteger, nullable=False, comment="incremented by each change"),
    comment="engine-hours whose roll-up is missing or older than their records, spans or weights",
)

set_aside_hours = Table(
    "set_aside_hours",
    schema,
    Column("hour", BigInteger, primary_key=True),
    Column("engine", Text, primary_key=True),
    Column("gpu_type", Text, primary_key=True),
    Column("gpu_count", BigInteger, primary_key=True),
    Column("since", BigInteger, nullable=False, comment="when it was first set aside"),
    Column("reason", Text, nullable=False, comment="for a person"),
    comment="engine-hours that cannot be rolled up because their content is implausible; in no report until "
    "an operator decides",
)

engine_hours = Table(
    "engine_hours",
    schema,
    Column("hour", BigInteger, primary_key=True),
    Column("engine", Text, primary_key=True),
    Column("gpu_type", Text, primary_key=True),
    Column("gpu_count", BigInteger, primary_key=True),
    Column("region", Text, nullable=False),
    Column("purchase", String(16), nullable=False),
    Column("base_model", Text, nullable=False),
    Column("provisioned_us", BigInteger, nullable=False, comment="alive or busy; not multiplied by GPUs"),
    Column("startup_us", BigInteger, nullable=False, comment="of it, before the engine was ready"),
    Column("busy_us", BigInteger, nullable=False, comment="of it, with something in flight"),
    Column(
        "nano_gpu_hours", BigInteger, nullable=False, comment="provisioned time multiplied by GPUs: the whole"
    ),
    Column("records", BigInteger, nullable=False),
    Column("calibration", BigInteger, nullable=False, comment="calibrations.id; 0: none"),
    comment="the wholes, as last computed; the parts of each are in rollups and sum to it",
)

rollups = Table(
    "rollups",
    schema,
    Column("id", _Id, primary_key=True),
    Column("posted", String(7), nullable=False, comment="month that the row is posted to"),
    Column("hour", BigInteger, nullable=False),
    Column("piece", BigInteger, nullable=False, comment="start of the part of the hour with one rate"),
    Column("engine", Text, nullable=False),
    Column("gpu_type", Text, nullable=False),
    Column("gpu_count", BigInteger, nullable=False),
    Column("region", Text, nullable=False),
    Column("purchase", String(16), nullable=False),
    Column("bucket", String(16), nullable=False, comment="see gateway.costs.cost_lines.BUCKETS"),
    Column("tenant", Text, nullable=False),
    Column("adapter", Text, nullable=False),
    Column("version", Text, nullable=False),
    Column("base_model", Text, nullable=False),
    Column("requests", BigInteger, nullable=False),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("cached_tokens", BigInteger, nullable=False),
    Column("completion_tokens", BigInteger, nullable=False),
    Column("reasoning_tokens", BigInteger, nullable=False),
    Column("nano_gpu_hours", BigInteger, nullable=False),
    Column("weight_input", BigInteger, nullable=False, comment="sum of ω by cause"),
    Column("weight_cached", BigInteger, nullable=False),
    Column("weight_output", BigInteger, nullable=False),
    Column("weight_other", BigInteger, nullable=False),
    Column("calibration", BigInteger, nullable=False, comment="calibrations.id; 0: none"),
    Column("correction", Boolean, nullable=False, comment="of an hour in an earlier, closed month"),
    Column("rate_micros", BigInteger, comment="frozen when the month was closed; null: by the price book"),
    Column("currency", String(3)),
    Index("rollups_by_month", "posted", "hour"),
    Index("rollups_by_engine", "engine", "hour"),
    Index("rollups_by_tenant", "tenant", "posted", "hour"),
    comment="who used what in an engine-hour. Rows of a closed month never change: later changes are "
    "-old/+new rows in the open month",
)

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

calibrations = Table(
    "calibrations",
    schema,
    Column("id", _Id, primary_key=True),
    Column("gpu_type", Text, nullable=False),
    Column("base_model", Text, nullable=False),
    Column("engine_version", Text, nullable=False),
    Column("valid_from", BigInteger, nullable=False, comment="a whole hour"),
    Column("recorded_at", BigInteger, nullable=False),
    Column("prefill_ps", BigInteger, nullable=False, comment="GPU-picoseconds per computed prompt token"),
    Column("cached_ps", BigInteger, nullable=False, comment="GPU-picoseconds per cached prompt token"),
    Column("decode_ps", BigInteger, nullable=False, comment="GPU-picoseconds per completion token"),
    Column("kv_ps", BigInteger, nullable=False, comment="GPU-picoseconds per KV token-second"),
    Column("load_ps", BigInteger, nullable=False, comment="GPU-picoseconds per adapter load"),
    Column("document", Text, nullable=False, comment="JSON: confidence intervals, the fit, the load"),
    UniqueConstraint("gpu_type", "base_model", "valid_from"),
    comment="append-only",
)

periods = Table(
    "periods",
    schema,
    Column("month", String(7), primary_key=True),
    Column("state", String(8), nullable=False, comment="`closing`: cut off, not yet summed; `closed`"),
    Column("first_batch", BigInteger, nullable=False, comment="exclusive: the previous cutoff"),
    Column("cutoff_batch", BigInteger, nullable=False, comment="inclusive"),
    Column("closing_at", BigInteger, nullable=False),
    Column("closed_at", BigInteger),
    Column("closed_by", Text, nullable=False),
    Column("policy", String(16), nullable=False, comment="how unused time was allocated"),
    Column("policy_shares", Text, comment="JSON {tenant: share} of policy `fixed`"),
    Column("currency", String(3)),
    Column("records", BigInteger),
    Column("root", String(64), comment="Merkle root"),
    Column("previous_root", String(64)),
    Column("document", Text, comment="JSON: totals, and the price book and calibrations at the cutoff"),
    comment="never changed once closed",
)

period_tenants = Table(
    "period_tenants",
    schema,
    Column("month", String(7), primary_key=True),
    Column("tenant", Text, primary_key=True),
    Column("records", BigInteger, nullable=False),
    Column("root", String(64), nullable=False, comment="Merkle root over the tenant's records"),
    Column("document", Text, nullable=False, comment="JSON: the statement's figures"),
    comment="never changed",
)

bill_lines = Table(
    "bill_lines",
    schema,
    Column("id", _Id, primary_key=True),
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

"""The initial schema."""

from alembic import op
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Integer,
    PrimaryKeyConstraint,
    String,
    Text,
    UniqueConstraint,
    text,
)

revision = "0001"
down_revision = None

_ID = BigInteger().with_variant(Integer, "sqlite")
_ACROSS_HOURS = text("dispatched / 3600000000 < ended / 3600000000")
_REFUSAL = "audit_log is append-only"


def upgrade() -> None:
    _records()
    _state()
    _prices_and_calibrations()
    _engine_time()
    _rollups()
    _periods()
    _bills()
    _audit_log()


def _records() -> None:
    op.create_table(
        "usage_records",
        Column("id", String(length=36), nullable=False),
        Column("request_id", Text(), nullable=False),
        Column("attempt", BigInteger(), nullable=False),
        Column("tenant", Text(), nullable=False),
        Column("key_id", Text(), nullable=False),
        Column("adapter", Text(), nullable=False),
        Column("version", Text(), nullable=False),
        Column("base_model", Text(), nullable=False),
        Column("engine", Text(), nullable=False),
        Column("gpu_type", Text(), nullable=False),
        Column("gpu_count", BigInteger(), nullable=False),
        Column("dispatched", BigInteger(), nullable=False),
        Column("first_token", BigInteger()),
        Column("ended", BigInteger(), nullable=False),
        Column("prompt_tokens", BigInteger(), nullable=False),
        Column("cached_tokens", BigInteger()),
        Column("completion_tokens", BigInteger(), nullable=False),
        Column("reasoning_tokens", BigInteger(), nullable=False),
        Column("n", BigInteger(), nullable=False),
        Column("usage_source", String(length=16), nullable=False),
        Column("outcome", String(length=16), nullable=False),
        Column("billable", Boolean(), nullable=False),
        Column("adapter_loads", BigInteger(), server_default="0", nullable=False),
        Column("hour_marks", Text()),
        Column("batch", BigInteger(), server_default="0", nullable=False),
        PrimaryKeyConstraint("id"),
    )
    op.create_index("usage_records_by_time", "usage_records", ["ended", "id"])
    op.create_index("usage_records_by_tenant", "usage_records", ["tenant", "ended", "id"])
    op.create_index("usage_records_by_engine", "usage_records", ["engine", "ended"])
    op.create_index(
        "usage_records_across_hours",
        "usage_records",
        ["engine", "ended", "dispatched"],
        sqlite_where=_ACROSS_HOURS,
        postgresql_where=_ACROSS_HOURS,
    )
    op.create_table(
        "quarantine",
        Column("id", String(length=36), nullable=False),
        Column("digest", String(length=64), nullable=False),
        Column("content", Text(), nullable=False),
        Column("recorded_at", BigInteger(), nullable=False),
        Column("reason", String(length=16), server_default="differs", nullable=False),
        PrimaryKeyConstraint("id", "digest"),
    )


def _state() -> None:
    op.create_table(
        "ledger_state",
        Column("name", String(length=40), nullable=False),
        Column("value", BigInteger(), nullable=False),
        PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "snapshots",
        Column("name", String(length=40), nullable=False),
        Column("at", BigInteger(), nullable=False),
        Column("document", Text(), nullable=False),
        PrimaryKeyConstraint("name"),
    )


def _prices_and_calibrations() -> None:
    op.create_table(
        "prices",
        Column("id", Integer(), nullable=False),
        Column("gpu_type", Text(), nullable=False),
        Column("region", Text(), nullable=False),
        Column("purchase", String(length=16), nullable=False),
        Column("rate_micros", BigInteger(), nullable=False),
        Column("currency", String(length=3), nullable=False),
        Column("valid_from", BigInteger(), nullable=False),
        Column("valid_to", BigInteger()),
        Column("recorded_at", BigInteger(), nullable=False),
        Column("speedup_millis", BigInteger()),
        Column("speedup_reference", Text()),
        Column("speedup_source", Text()),
        PrimaryKeyConstraint("id"),
        UniqueConstraint("gpu_type", "region", "purchase", "valid_from"),
    )
    op.create_table(
        "calibrations",
        Column("id", _ID, nullable=False),
        Column("gpu_type", Text(), nullable=False),
        Column("base_model", Text(), nullable=False),
        Column("engine_version", Text(), nullable=False),
        Column("valid_from", BigInteger(), nullable=False),
        Column("recorded_at", BigInteger(), nullable=False),
        Column("prefill_ps", BigInteger(), nullable=False),
        Column("cached_ps", BigInteger(), nullable=False),
        Column("decode_ps", BigInteger(), nullable=False),
        Column("kv_ps", BigInteger(), nullable=False),
        Column("load_ps", BigInteger(), nullable=False),
        Column("document", Text(), nullable=False),
        PrimaryKeyConstraint("id"),
        UniqueConstraint("gpu_type", "base_model", "valid_from"),
    )


def _engine_time() -> None:
    op.create_table(
        "engine_spans",
        Column("engine", Text(), nullable=False),
        Column("worker", Text(), nullable=False),
        Column("started", BigInteger(), nullable=False),
        Column("phase", String(length=8), nullable=False),
        Column("seen", BigInteger(), nullable=False),
        Column("gpu_type", Text(), nullable=False),
        Column("gpu_count", BigInteger(), nullable=False),
        Column("region", Text(), nullable=False),
        Column("purchase", String(length=16), nullable=False),
        Column("base_model", Text(), nullable=False),
        PrimaryKeyConstraint("engine", "worker", "started", "phase"),
    )
    op.create_index("engine_spans_by_time", "engine_spans", ["seen"])
    op.create_table(
        "engine_counters",
        Column("engine", Text(), nullable=False),
        Column("epoch", BigInteger(), nullable=False),
        Column("hour", BigInteger(), nullable=False),
        Column("at", BigInteger(), nullable=False),
        Column("prompt_tokens", BigInteger(), nullable=False),
        Column("cached_tokens", BigInteger()),
        Column("completion_tokens", BigInteger(), nullable=False),
        PrimaryKeyConstraint("engine", "epoch", "hour"),
    )
    op.create_table(
        "engine_probes",
        Column("id", String(length=32), nullable=False),
        Column("engine", Text(), nullable=False),
        Column("at", BigInteger(), nullable=False),
        Column("prompt_tokens", BigInteger(), nullable=False),
        Column("cached_tokens", BigInteger(), nullable=False),
        Column("completion_tokens", BigInteger(), nullable=False),
        PrimaryKeyConstraint("id"),
    )
    op.create_index("engine_probes_by_engine", "engine_probes", ["engine", "at"])
    op.create_index("engine_probes_by_time", "engine_probes", ["at"])


def _rollups() -> None:
    op.create_table(
        "dirty_hours",
        Column("hour", BigInteger(), nullable=False),
        Column("engine", Text(), nullable=False),
        Column("gpu_type", Text(), nullable=False),
        Column("gpu_count", BigInteger(), nullable=False),
        Column("version", BigInteger(), nullable=False),
        PrimaryKeyConstraint("hour", "engine", "gpu_type", "gpu_count"),
    )
    op.create_table(
        "set_aside_hours",
        Column("hour", BigInteger(), nullable=False),
        Column("engine", Text(), nullable=False),
        Column("gpu_type", Text(), nullable=False),
        Column("gpu_count", BigInteger(), nullable=False),
        Column("since", BigInteger(), nullable=False),
        Column("reason", Text(), nullable=False),
        PrimaryKeyConstraint("hour", "engine", "gpu_type", "gpu_count"),
    )
    op.create_table(
        "engine_hours",
        Column("hour", BigInteger(), nullable=False),
        Column("engine", Text(), nullable=False),
        Column("gpu_type", Text(), nullable=False),
        Column("gpu_count", BigInteger(), nullable=False),
        Column("region", Text(), nullable=False),
        Column("purchase", String(length=16), nullable=False),
        Column("base_model", Text(), nullable=False),
        Column("provisioned_us", BigInteger(), nullable=False),
        Column("startup_us", BigInteger(), nullable=False),
        Column("busy_us", BigInteger(), nullable=False),
        Column("nano_gpu_hours", BigInteger(), nullable=False),
        Column("records", BigInteger(), nullable=False),
        Column("calibration", BigInteger(), nullable=False),
        PrimaryKeyConstraint("hour", "engine", "gpu_type", "gpu_count"),
    )
    op.create_table(
        "rollups",
        Column("id", _ID, nullable=False),
        Column("posted", String(length=7), nullable=False),
        Column("hour", BigInteger(), nullable=False),
        Column("piece", BigInteger(), nullable=False),
        Column("engine", Text(), nullable=False),
        Column("gpu_type", Text(), nullable=False),
        Column("gpu_count", BigInteger(), nullable=False),
        Column("region", Text(), nullable=False),
        Column("purchase", String(length=16), nullable=False),
        Column("bucket", String(length=16), nullable=False),
        Column("tenant", Text(), nullable=False),
        Column("adapter", Text(), nullable=False),
        Column("version", Text(), nullable=False),
        Column("base_model", Text(), nullable=False),
        Column("requests", BigInteger(), nullable=False),
        Column("prompt_tokens", BigInteger(), nullable=False),
        Column("cached_tokens", BigInteger(), nullable=False),
        Column("completion_tokens", BigInteger(), nullable=False),
        Column("reasoning_tokens", BigInteger(), nullable=False),
        Column("nano_gpu_hours", BigInteger(), nullable=False),
        Column("weight_input", BigInteger(), nullable=False),
        Column("weight_cached", BigInteger(), nullable=False),
        Column("weight_output", BigInteger(), nullable=False),
        Column("weight_other", BigInteger(), nullable=False),
        Column("calibration", BigInteger(), nullable=False),
        Column("correction", Boolean(), nullable=False),
        Column("rate_micros", BigInteger()),
        Column("currency", String(length=3)),
        PrimaryKeyConstraint("id"),
    )
    op.create_index("rollups_by_month", "rollups", ["posted", "hour"])
    op.create_index("rollups_by_engine", "rollups", ["engine", "hour"])
    op.create_index("rollups_by_tenant", "rollups", ["tenant", "posted", "hour"])


def _periods() -> None:
    op.create_table(
        "periods",
        Column("month", String(length=7), nullable=False),
        Column("state", String(length=8), nullable=False),
        Column("first_batch", BigInteger(), nullable=False),
        Column("cutoff_batch", BigInteger(), nullable=False),
        Column("closing_at", BigInteger(), nullable=False),
        Column("closed_at", BigInteger()),
        Column("closed_by", Text(), nullable=False),
        Column("policy", String(length=16), nullable=False),
        Column("policy_shares", Text()),
        Column("currency", String(length=3)),
        Column("records", BigInteger()),
        Column("root", String(length=64)),
        Column("previous_root", String(length=64)),
        Column("document", Text()),
        PrimaryKeyConstraint("month"),
    )
    op.create_table(
        "period_tenants",
        Column("month", String(length=7), nullable=False),
        Column("tenant", Text(), nullable=False),
        Column("records", BigInteger(), nullable=False),
        Column("root", String(length=64), nullable=False),
        Column("document", Text(), nullable=False),
        PrimaryKeyConstraint("month", "tenant"),
    )


def _bills() -> None:
    op.create_table(
        "bill_lines",
        Column("id", _ID, nullable=False),
        Column("source", String(length=64), nullable=False),
        Column("line", BigInteger(), nullable=False),
        Column("file_name", Text(), nullable=False),
        Column("imported_at", BigInteger(), nullable=False),
        Column("start", BigInteger(), nullable=False),
        Column("end", BigInteger(), nullable=False),
        Column("resource", Text(), nullable=False),
        Column("gpu_type", Text(), nullable=False),
        Column("region", Text(), nullable=False),
        Column("purchase", String(length=16), nullable=False),
        Column("nano_gpu_hours", BigInteger(), nullable=False),
        Column("cost", Text(), nullable=False),
        Column("currency", String(length=3), nullable=False),
        Column("description", Text(), nullable=False),
        PrimaryKeyConstraint("id"),
        UniqueConstraint("source", "line"),
    )
    op.create_index("bill_lines_by_time", "bill_lines", ["start"])


def _audit_log() -> None:
    """The database itself refuses to rewrite the audit log."""
    op.create_table(
        "audit_log",
        Column("id", Text(), nullable=False),
        Column("digest", String(length=64), nullable=False),
        Column("at", BigInteger(), nullable=False),
        Column("seq", BigInteger(), nullable=False),
        Column("actor", Text(), nullable=False),
        Column("action", Text(), nullable=False),
        Column("subject", Text(), nullable=False),
        Column("version", Text(), nullable=False),
        Column("details", Text(), nullable=False),
        PrimaryKeyConstraint("id", "digest"),
    )
    op.create_index("audit_log_by_time", "audit_log", ["at", "seq", "id", "digest"])
    op.create_index("audit_log_by_subject", "audit_log", ["subject", "at", "seq", "id", "digest"])
    if op.get_context().dialect.name == "postgresql":
        _guard_postgresql()
    else:
        for change in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER audit_log_no_{change.lower()} BEFORE {change} ON audit_log "
                f"BEGIN SELECT RAISE(ABORT, '{_REFUSAL}'); END"
            )


def _guard_postgresql() -> None:
    op.execute(
        "CREATE FUNCTION florin_append_only() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN RAISE EXCEPTION '{_REFUSAL}'; END $$"
    )
    op.execute(
        "CREATE TRIGGER audit_log_no_change BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_log "
        "FOR EACH STATEMENT EXECUTE FUNCTION florin_append_only()"
    )

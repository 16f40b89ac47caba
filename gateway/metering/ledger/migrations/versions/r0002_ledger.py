"""Roll-ups, engine time, periods, calibrations, bills; records say which transaction brought them."""

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

revision = "0002"
down_revision = "0001"

_ID = BigInteger().with_variant(Integer, "sqlite")
_ACROSS_HOURS = text("dispatched / 3600000000 < ended / 3600000000")
_HOUR = 3_600_000_000


def upgrade() -> None:
    _records()
    _quarantine_and_prices()
    _engine_time()
    _rollups()
    _periods()
    _bills_and_snapshots()
    _mark_dirty()


def _records() -> None:
    op.add_column("usage_records", Column("adapter_loads", BigInteger(), server_default="0", nullable=False))
    op.add_column("usage_records", Column("hour_marks", Text()))
    op.add_column("usage_records", Column("batch", BigInteger(), server_default="0", nullable=False))
    op.create_index(
        "usage_records_across_hours",
        "usage_records",
        ["engine", "ended", "dispatched"],
        sqlite_where=_ACROSS_HOURS,
        postgresql_where=_ACROSS_HOURS,
    )
    op.create_index("usage_records_by_pool", "usage_records", ["engine", "ended"])


def _quarantine_and_prices() -> None:
    op.add_column("quarantine", Column("reason", String(length=16), server_default="differs", nullable=False))
    op.add_column("prices", Column("speedup_millis", BigInteger()))
    op.add_column("prices", Column("speedup_reference", Text()))
    op.add_column("prices", Column("speedup_source", Text()))


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


def _rollups() -> None:
    op.create_table(
        "ledger_state",
        Column("name", String(length=40), nullable=False),
        Column("value", BigInteger(), nullable=False),
        PrimaryKeyConstraint("name"),
    )
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
        "pool_hours",
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
    op.create_index("rollups_by_pool", "rollups", ["engine", "hour"])
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


def _bills_and_snapshots() -> None:
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
    op.create_table(
        "snapshots",
        Column("name", String(length=40), nullable=False),
        Column("at", BigInteger(), nullable=False),
        Column("document", Text(), nullable=False),
        PrimaryKeyConstraint("name"),
    )


def _mark_dirty() -> None:
    """Every pool-hour that the records so far touch: [dispatched, ended], or the hour of the end if the
    clock was set back meanwhile."""
    op.execute(f"""
        WITH RECURSIVE touched (hour, last, engine, gpu_type, gpu_count) AS (
            SELECT DISTINCT
                CASE WHEN dispatched < ended THEN dispatched ELSE ended END / {_HOUR} * {_HOUR},
                ended / {_HOUR} * {_HOUR}, engine, gpu_type, gpu_count
            FROM usage_records
            UNION
            SELECT hour + {_HOUR}, last, engine, gpu_type, gpu_count FROM touched WHERE hour < last
        )
        INSERT INTO dirty_hours (hour, engine, gpu_type, gpu_count, version)
        SELECT DISTINCT hour, engine, gpu_type, gpu_count, 1 FROM touched
    """)  # noqa: S608  # a constant

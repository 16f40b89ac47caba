"""Who within a tenant used what: keys, end users, tags, cost centres."""

from alembic import op
from sqlalchemy import BigInteger, Boolean, Column, Integer, PrimaryKeyConstraint, String, Text

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    for name in ("end_user", "tag", "cost_centre"):
        op.add_column("usage_records", Column(name, Text()))
    _parts()
    _roll_up_again()


def _parts() -> None:
    op.create_table(
        "rollup_parts",
        Column("id", BigInteger().with_variant(Integer(), "sqlite"), nullable=False),
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
        Column("dimension", String(length=16), nullable=False),
        Column("name", Text(), nullable=False),
        PrimaryKeyConstraint("id"),
    )
    op.create_index("rollup_parts_by_month", "rollup_parts", ["posted", "dimension", "hour"])
    op.create_index("rollup_parts_by_engine", "rollup_parts", ["engine", "hour"])
    op.create_index("rollup_parts_by_tenant", "rollup_parts", ["tenant", "posted", "dimension", "hour"])


def _roll_up_again() -> None:
    """The hours of months that are not closed, so that their parts by key are there from the month's start.
    Those of closed months never change. `posted` is the month of an hour as text, and an open hour's rows are
    posted to its own month."""
    op.execute(
        "INSERT INTO dirty_hours (hour, engine, gpu_type, gpu_count, version) "
        "SELECT DISTINCT hour, engine, gpu_type, gpu_count, 1 FROM rollups "
        "WHERE tenant <> '' AND NOT correction "
        "AND posted > COALESCE((SELECT max(month) FROM periods), '') "
        "AND hour >= COALESCE((SELECT value FROM ledger_state WHERE name = 'pruned_before'), 0) "
        "ON CONFLICT DO NOTHING"
    )

"""Budgets, alerts, and energy."""

from alembic import op
from sqlalchemy import BigInteger, Column, Integer, PrimaryKeyConstraint, String, Text, text

revision = "0007"
down_revision = "0006"

_ID = BigInteger().with_variant(Integer, "sqlite")
_WITH_LOADS = text("adapter_loads > 0")


def upgrade() -> None:
    _budgets()
    _energy()
    _residency()
    op.create_index("usage_records_by_batch", "usage_records", ["batch", "id"])
    op.create_index(
        "usage_records_with_loads",
        "usage_records",
        ["ended"],
        sqlite_where=_WITH_LOADS,
        postgresql_where=_WITH_LOADS,
    )


def _budgets() -> None:
    op.create_table(
        "cost_budgets",
        Column("id", _ID, nullable=False),
        Column("tenant", Text(), nullable=False),
        Column("month", String(length=7), nullable=False),
        Column("amount_micros", BigInteger(), nullable=True),
        Column("currency", String(length=3), nullable=False),
        Column("warn_percent", BigInteger(), nullable=False),
        Column("recorded_at", BigInteger(), nullable=False),
        PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "cost_alerts",
        Column("id", String(length=36), nullable=False),
        Column("at", BigInteger(), nullable=False),
        Column("kind", String(length=32), nullable=False),
        Column("tenant", Text(), nullable=False),
        Column("document", Text(), nullable=False),
        Column("delivered_at", BigInteger(), nullable=True),
        PrimaryKeyConstraint("id"),
    )
    op.create_index("cost_alerts_by_time", "cost_alerts", ["at"])


def _energy() -> None:
    op.create_table(
        "gpu_power",
        Column("id", _ID, nullable=False),
        Column("gpu_type", Text(), nullable=False),
        Column("valid_from", BigInteger(), nullable=False),
        Column("milliwatts", BigInteger(), nullable=False),
        Column("idle_milliwatts", BigInteger(), nullable=False),
        Column("source", Text(), nullable=False),
        Column("recorded_at", BigInteger(), nullable=False),
        PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "grid_factors",
        Column("id", _ID, nullable=False),
        Column("region", Text(), nullable=False),
        Column("valid_from", BigInteger(), nullable=False),
        Column("milligrams_per_kwh", BigInteger(), nullable=False),
        Column("pue_millis", BigInteger(), nullable=False),
        Column("source", Text(), nullable=False),
        Column("recorded_at", BigInteger(), nullable=False),
        PrimaryKeyConstraint("id"),
    )


def _residency() -> None:
    op.create_table(
        "residency_spans",
        Column("engine", Text(), nullable=False),
        Column("version", Text(), nullable=False),
        Column("started", BigInteger(), nullable=False),
        Column("seen", BigInteger(), nullable=False),
        Column("slots", BigInteger(), nullable=False),
        Column("gpu_type", Text(), nullable=False),
        Column("gpu_count", BigInteger(), nullable=False),
        Column("region", Text(), nullable=False),
        Column("purchase", String(length=16), nullable=False),
        PrimaryKeyConstraint("engine", "version", "started"),
    )
    op.create_index("residency_spans_by_time", "residency_spans", ["seen"])

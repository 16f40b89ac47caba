"""Sums of roll-ups by day, which reports read."""

from typing import Any

from alembic import op
from sqlalchemy import BigInteger, Boolean, Column, PrimaryKeyConstraint, String, Text

revision = "0019"
down_revision = "0018"

_FIGURES = (
    *("requests", "prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens"),
    *("nano_gpu_hours", "weight_input", "weight_cached", "weight_output", "weight_other"),
)


def upgrade() -> None:
    op.create_table("daily_rollups", *_columns())
    op.create_index("daily_rollups_by_month", "daily_rollups", ["posted", "day"])
    op.create_index("daily_rollups_by_tenant", "daily_rollups", ["tenant", "posted", "day"])
    parts = (Column("dimension", String(length=16), nullable=False), Column("name", Text(), nullable=False))
    op.create_table("daily_parts", *_columns(), *parts)
    op.create_index("daily_parts_by_month", "daily_parts", ["posted", "dimension", "day"])
    op.create_index("daily_parts_by_tenant", "daily_parts", ["tenant", "posted", "dimension", "day"])
    op.create_table("unsummed_days", Column("day", BigInteger(), nullable=False), PrimaryKeyConstraint("day"))
    # The next passes of the roll-up sum them.
    op.execute("INSERT INTO unsummed_days (day) SELECT DISTINCT hour - hour % 86400000000 FROM rollups")


def _columns() -> tuple[Column[Any], ...]:
    return (
        Column("posted", String(length=7), nullable=False),
        Column("day", BigInteger(), nullable=False),
        Column("gpu_type", Text(), nullable=False),
        Column("region", Text(), nullable=False),
        Column("purchase", String(length=16), nullable=False),
        Column("bucket", String(length=16), nullable=False),
        *(Column(name, Text(), nullable=False) for name in ("tenant", "adapter", "version", "base_model")),
        *(Column(name, BigInteger(), nullable=False) for name in _FIGURES),
        Column("calibration", BigInteger(), nullable=False),
        Column("correction", Boolean(), nullable=False),
        Column("rate_micros", BigInteger()),
    )

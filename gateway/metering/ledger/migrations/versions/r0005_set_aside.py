"""Engine-hours that cannot be rolled up, set aside so that they stop no others."""

from alembic import op
from sqlalchemy import BigInteger, Column, PrimaryKeyConstraint, Text

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
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
    _mark_absurd()


def _mark_absurd() -> None:
    """Hours of open months with sums that no engine can do: they are looked at again, under the new rules."""
    op.execute(
        "INSERT INTO dirty_hours (hour, engine, gpu_type, gpu_count, version) "
        "SELECT DISTINCT hour, engine, gpu_type, gpu_count, 1 FROM rollups "
        "WHERE (prompt_tokens > 1000000000000 OR completion_tokens > 1000000000000 "
        "OR cached_tokens > 1000000000000 OR reasoning_tokens > 1000000000000) "
        "AND posted > COALESCE((SELECT MAX(month) FROM periods), '') "
        "ON CONFLICT (hour, engine, gpu_type, gpu_count) DO UPDATE SET version = dirty_hours.version + 1"
    )

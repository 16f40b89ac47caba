"""Engines that are dedicated to a tenant: whose their time was, and what months charged of it."""

from alembic import op
from sqlalchemy import BigInteger, Column, PrimaryKeyConstraint, String, Text, text

revision = "0027"
down_revision = "0024"


def upgrade() -> None:
    op.add_column("engine_spans", Column("tenant", Text(), server_default=text("''"), nullable=False))
    op.create_table(
        "period_dedicated",
        Column("month", String(length=7), nullable=False),
        Column("tenant", Text(), nullable=False),
        Column("gpu_type", Text(), nullable=False),
        Column("milli_hours", BigInteger(), nullable=False),
        PrimaryKeyConstraint("month", "tenant", "gpu_type"),
    )

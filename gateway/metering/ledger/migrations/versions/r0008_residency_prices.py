"""Prices per adapter-hour, and what is sealed of residency."""

from alembic import op
from sqlalchemy import BigInteger, Column, PrimaryKeyConstraint, String, Text

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    micros = Column("residency_micros", BigInteger(), server_default="0", nullable=False)
    op.add_column("rate_cards", micros)
    op.create_table(
        "period_residency",
        Column("month", String(length=7), nullable=False),
        Column("adapter", Text(), nullable=False),
        Column("milli_hours", BigInteger(), nullable=False),
        PrimaryKeyConstraint("month", "adapter"),
    )

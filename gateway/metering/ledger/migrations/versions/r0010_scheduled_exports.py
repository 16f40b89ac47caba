"""Scheduled exports."""

from alembic import op
from sqlalchemy import BigInteger, Column, PrimaryKeyConstraint, String, Text

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.create_table(
        "scheduled_exports",
        Column("object", Text(), nullable=False),
        Column("month", String(length=7), nullable=False),
        Column("state", String(length=8), nullable=False),
        Column("digest", String(length=64), nullable=False),
        Column("rows", BigInteger(), nullable=False),
        Column("size", BigInteger(), nullable=False),
        Column("written_at", BigInteger(), nullable=False),
        Column("checked_at", BigInteger(), nullable=False),
        PrimaryKeyConstraint("object"),
    )

"""Fees, single lines of statements, and requests to close a month."""

from alembic import op
from sqlalchemy import BigInteger, Boolean, Column, Integer, PrimaryKeyConstraint, String, Text

revision = "0016"
down_revision = "0015"

_ID = BigInteger().with_variant(Integer, "sqlite")


def upgrade() -> None:
    op.create_table(
        "manual_lines",
        Column("id", _ID, autoincrement=True, nullable=False),
        Column("kind", String(length=8), nullable=False),
        Column("tenant", Text(), nullable=False),
        Column("adapter", Text(), nullable=False),
        Column("cents", BigInteger(), nullable=False),
        Column("reason", Text(), nullable=False),
        Column("begins", String(length=10), nullable=False),
        Column("ends", String(length=10), nullable=False),
        Column("prorated", Boolean(), nullable=False),
        Column("fee", BigInteger(), nullable=True),
        Column("month", String(length=7), nullable=False),
        Column("requested_at", BigInteger(), nullable=False),
        Column("requested_by", Text(), nullable=False),
        Column("approved_at", BigInteger(), nullable=True),
        Column("approved_by", Text(), nullable=True),
        Column("withdrawn_at", BigInteger(), nullable=True),
        Column("withdrawn_by", Text(), nullable=True),
        PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "close_requests",
        Column("month", String(length=7), nullable=False),
        Column("terms", Text(), nullable=False),
        Column("requested_at", BigInteger(), nullable=False),
        Column("requested_by", Text(), nullable=False),
        PrimaryKeyConstraint("month"),
    )

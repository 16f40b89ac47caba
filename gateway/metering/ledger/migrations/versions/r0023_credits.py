"""Prepaid credits, and what closed months have drawn of them."""

from alembic import op
from sqlalchemy import BigInteger, Column, Integer, PrimaryKeyConstraint, String, Text

revision = "0023"
down_revision = "0020"

_ID = BigInteger().with_variant(Integer, "sqlite")


def upgrade() -> None:
    op.create_table(
        "credit_grants",
        Column("id", _ID, autoincrement=True, nullable=False),
        Column("tenant", Text(), nullable=False),
        Column("cents", BigInteger(), nullable=False),
        Column("begins", String(length=7), nullable=False),
        Column("ends", String(length=7), nullable=False),
        Column("priority", BigInteger(), nullable=False),
        Column("reason", Text(), nullable=False),
        Column("reference", Text(), nullable=False),
        Column("granted_at", BigInteger(), nullable=False),
        Column("granted_by", Text(), nullable=False),
        PrimaryKeyConstraint("id"),
    )
    op.create_index("credit_grants_by_tenant", "credit_grants", ["tenant"])
    op.create_table(
        "credit_draws",
        Column("month", String(length=7), nullable=False),
        Column("grant_id", BigInteger(), nullable=False),
        Column("cents", BigInteger(), nullable=False),
        PrimaryKeyConstraint("month", "grant_id"),
    )

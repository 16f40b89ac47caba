"""Evaluations."""

from alembic import op
from sqlalchemy import BigInteger, Boolean, Column, LargeBinary, PrimaryKeyConstraint, String, Text

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    op.create_table(
        "evaluations",
        Column("id", String(length=40), nullable=False),
        Column("tenant", Text(), nullable=False),
        Column("tenant_since", BigInteger(), nullable=False),
        Column("adapter", Text(), nullable=False),
        Column("version", BigInteger(), nullable=False),
        Column("digest", Text(), nullable=False),
        Column("against", Text(), nullable=False),
        Column("against_digest", Text(), nullable=False),
        Column("plan", Text(), nullable=False),
        Column("data_sha256", String(length=64), nullable=False),
        Column("cases", BigInteger(), nullable=False),
        Column("status", String(length=16), nullable=False),
        Column("batch", String(length=40), nullable=False),
        Column("judge_batch", String(length=40), nullable=False),
        Column("key_id", Text(), nullable=False),
        Column("actor", Text(), nullable=False),
        Column("created_at", BigInteger(), nullable=False),
        Column("ended_at", BigInteger(), nullable=True),
        Column("passed", Boolean(), nullable=True),
        Column("summary", Text(), nullable=False),
        Column("lease_until", BigInteger(), nullable=False),
        Column("data", LargeBinary(), nullable=True),
        PrimaryKeyConstraint("id"),
    )
    op.create_index("evaluations_by_adapter", "evaluations", ["adapter", "created_at", "id"])
    op.create_index("evaluations_by_status", "evaluations", ["status"])

"""What the provider billed: accepted differences, true-ups, commitments."""

from alembic import op
from sqlalchemy import BigInteger, Boolean, Column, Integer, PrimaryKeyConstraint, String, Text

revision = "0005"
down_revision = "0004"

_ID = BigInteger().with_variant(Integer, "sqlite")


def upgrade() -> None:
    op.add_column("bill_lines", Column("category", String(length=16), nullable=False, server_default="usage"))
    op.create_table(
        "bill_acceptances",
        Column("id", _ID, nullable=False),
        Column("month", String(length=7), nullable=False),
        Column("line", String(length=32), nullable=False),
        Column("accepted", Boolean(), nullable=False),
        Column("at", BigInteger(), nullable=False),
        Column("by", Text(), nullable=False),
        Column("reason", Text(), nullable=False),
        Column("nano_gpu_hours", BigInteger(), nullable=False),
        Column("cost", Text(), nullable=False),
        Column("tokens", BigInteger(), nullable=False),
        PrimaryKeyConstraint("id"),
    )
    op.create_index("bill_acceptances_by_month", "bill_acceptances", ["month"])
    op.create_table(
        "true_ups",
        Column("id", _ID, nullable=False),
        Column("month", String(length=7), nullable=False),
        Column("at", BigInteger(), nullable=False),
        Column("by", Text(), nullable=False),
        Column("document", Text(), nullable=False),
        PrimaryKeyConstraint("id"),
    )
    op.create_index("true_ups_by_month", "true_ups", ["month"])
    op.create_table(
        "commitments",
        Column("id", _ID, nullable=False),
        Column("gpu_type", Text(), nullable=False),
        Column("region", Text(), nullable=False),
        Column("gpus", BigInteger(), nullable=False),
        Column("valid_from", BigInteger(), nullable=False),
        Column("valid_to", BigInteger(), nullable=False),
        Column("rate_micros", BigInteger(), nullable=False),
        Column("upfront", Text(), nullable=False),
        Column("currency", String(length=3), nullable=False),
        Column("description", Text(), nullable=False),
        Column("recorded_at", BigInteger(), nullable=False),
        Column("recorded_by", Text(), nullable=False),
        Column("withdrawn_at", BigInteger()),
        Column("withdrawn_by", Text()),
        Column("withdrawn_reason", Text()),
        PrimaryKeyConstraint("id"),
    )

"""The tables as version 0.1.0 made them, without a note of it: records, quarantine, prices."""

from alembic import op
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Integer,
    PrimaryKeyConstraint,
    String,
    Text,
    UniqueConstraint,
)

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "prices",
        Column("id", Integer(), nullable=False),
        Column("gpu_type", Text(), nullable=False),
        Column("region", Text(), nullable=False),
        Column("purchase", String(length=16), nullable=False),
        Column("rate_micros", BigInteger(), nullable=False),
        Column("currency", String(length=3), nullable=False),
        Column("valid_from", BigInteger(), nullable=False),
        Column("valid_to", BigInteger()),
        Column("recorded_at", BigInteger(), nullable=False),
        PrimaryKeyConstraint("id"),
        UniqueConstraint("gpu_type", "region", "purchase", "valid_from"),
    )
    op.create_table(
        "quarantine",
        Column("id", String(length=36), nullable=False),
        Column("digest", String(length=64), nullable=False),
        Column("content", Text(), nullable=False),
        Column("recorded_at", BigInteger(), nullable=False),
        PrimaryKeyConstraint("id", "digest"),
    )
    op.create_table(
        "usage_records",
        Column("id", String(length=36), nullable=False),
        Column("request_id", Text(), nullable=False),
        Column("attempt", BigInteger(), nullable=False),
        Column("tenant", Text(), nullable=False),
        Column("key_id", Text(), nullable=False),
        Column("adapter", Text(), nullable=False),
        Column("version", Text(), nullable=False),
        Column("base_model", Text(), nullable=False),
        Column("engine", Text(), nullable=False),
        Column("gpu_type", Text(), nullable=False),
        Column("gpu_count", BigInteger(), nullable=False),
        Column("dispatched", BigInteger(), nullable=False),
        Column("first_token", BigInteger()),
        Column("ended", BigInteger(), nullable=False),
        Column("prompt_tokens", BigInteger(), nullable=False),
        Column("cached_tokens", BigInteger()),
        Column("completion_tokens", BigInteger(), nullable=False),
        Column("reasoning_tokens", BigInteger(), nullable=False),
        Column("n", BigInteger(), nullable=False),
        Column("usage_source", String(length=16), nullable=False),
        Column("outcome", String(length=16), nullable=False),
        Column("billable", Boolean(), nullable=False),
        PrimaryKeyConstraint("id"),
    )
    op.create_index("usage_records_by_tenant", "usage_records", ["tenant", "ended", "id"])
    op.create_index("usage_records_by_time", "usage_records", ["ended", "id"])

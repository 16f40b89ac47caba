"""The ledger as version 0.1.0 made it, by `create_all`, without alembic's note."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

schema = MetaData()

usage_records = Table(
    "usage_records",
    schema,
    Column("id", String(36), primary_key=True),
    Column("request_id", Text, nullable=False),
    Column("attempt", BigInteger, nullable=False),
    Column("tenant", Text, nullable=False),
    Column("key_id", Text, nullable=False),
    Column("adapter", Text, nullable=False),
    Column("version", Text, nullable=False),
    Column("base_model", Text, nullable=False),
    Column("engine", Text, nullable=False),
    Column("gpu_type", Text, nullable=False),
    Column("gpu_count", BigInteger, nullable=False),
    Column("dispatched", BigInteger, nullable=False),
    Column("first_token", BigInteger),
    Column("ended", BigInteger, nullable=False),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("cached_tokens", BigInteger),
    Column("completion_tokens", BigInteger, nullable=False),
    Column("reasoning_tokens", BigInteger, nullable=False),
    Column("n", BigInteger, nullable=False),
    Column("usage_source", String(16), nullable=False),
    Column("outcome", String(16), nullable=False),
    Column("billable", Boolean, nullable=False),
    Index("usage_records_by_time", "ended", "id"),
    Index("usage_records_by_tenant", "tenant", "ended", "id"),
)

quarantine = Table(
    "quarantine",
    schema,
    Column("id", String(36), primary_key=True),
    Column("digest", String(64), primary_key=True),
    Column("content", Text, nullable=False),
    Column("recorded_at", BigInteger, nullable=False),
    comment="records whose id the ledger holds with other content: for a person to look at",
)

prices = Table(
    "prices",
    schema,
    Column("id", Integer, primary_key=True),
    Column("gpu_type", Text, nullable=False),
    Column("region", Text, nullable=False),
    Column("purchase", String(16), nullable=False),
    Column("rate_micros", BigInteger, nullable=False, comment="millionths of the currency per GPU-hour"),
    Column("currency", String(3), nullable=False),
    Column("valid_from", BigInteger, nullable=False),
    Column(
        "valid_to", BigInteger, comment="null: until the next price of the same GPU type, region, purchase"
    ),
    Column("recorded_at", BigInteger, nullable=False),
    UniqueConstraint("gpu_type", "region", "purchase", "valid_from"),
)

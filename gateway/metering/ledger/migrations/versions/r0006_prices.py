"""Corrected prices, and exchange rates."""

from typing import Any

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
    false,
    text,
)

revision = "0006"
down_revision = "0005"

_ID = BigInteger().with_variant(Integer, "sqlite")
_KEPT = (
    "id, gpu_type, region, purchase, rate_micros, currency, valid_from, valid_to, recorded_at, "
    "speedup_millis, speedup_reference, speedup_source"
)


def upgrade() -> None:
    if op.get_bind().dialect.name == "sqlite":
        _copy_prices()
    else:
        op.drop_constraint("prices_gpu_type_region_purchase_valid_from_key", "prices")
        for column in _added():
            op.add_column("prices", column)
        op.create_unique_constraint("prices_supersedes_key", "prices", ["supersedes"])
    op.create_table(
        "exchange_rates",
        Column("id", _ID, nullable=False),
        Column("currency", String(length=3), nullable=False),
        Column("target", String(length=3), nullable=False),
        Column("rate_nanos", BigInteger(), nullable=False),
        Column("valid_from", BigInteger(), nullable=False),
        Column("recorded_at", BigInteger(), nullable=False),
        Column("source", Text(), nullable=False),
        Column("reason", Text()),
        PrimaryKeyConstraint("id"),
    )


def _added() -> list[Column[Any]]:
    return [
        Column("supersedes", Integer()),
        Column("withdrawn", Boolean(), server_default=false(), nullable=False),
        Column("reason", Text()),
    ]


def _copy_prices() -> None:
    """SQLite cannot drop a constraint: a correction may begin when the price that it corrects did."""
    op.rename_table("prices", "prices_before")
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
        Column("speedup_millis", BigInteger()),
        Column("speedup_reference", Text()),
        Column("speedup_source", Text()),
        *_added(),
        PrimaryKeyConstraint("id"),
        UniqueConstraint("supersedes", name="prices_supersedes_key"),
    )
    op.execute(text(f"INSERT INTO prices ({_KEPT}) SELECT {_KEPT} FROM prices_before"))  # noqa: S608  # our own names
    op.drop_table("prices_before")

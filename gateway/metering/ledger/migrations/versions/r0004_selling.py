"""What customers pay: rate cards, who has which, and invoices."""

from alembic import op
from sqlalchemy import BigInteger, Column, Integer, PrimaryKeyConstraint, String, Text

revision = "0004"
down_revision = "0003"

_ID = BigInteger().with_variant(Integer, "sqlite")


def upgrade() -> None:
    op.create_table(
        "rate_cards",
        Column("id", _ID, autoincrement=True, nullable=False),
        Column("name", Text(), nullable=False),
        Column("valid_from", String(length=7), nullable=False),
        Column("currency", String(length=3), nullable=False),
        Column("input_micros", BigInteger(), nullable=False),
        Column("cached_micros", BigInteger(), nullable=False),
        Column("output_micros", BigInteger(), nullable=False),
        Column("minimum_micros", BigInteger(), nullable=False),
        Column("free_input", BigInteger(), nullable=False),
        Column("free_cached", BigInteger(), nullable=False),
        Column("free_output", BigInteger(), nullable=False),
        Column("reason", Text(), nullable=False),
        Column("recorded_at", BigInteger(), nullable=False),
        PrimaryKeyConstraint("id"),
    )
    op.create_index("rate_cards_by_name", "rate_cards", ["name", "valid_from"])
    op.create_table(
        "rate_card_assignments",
        Column("id", _ID, autoincrement=True, nullable=False),
        Column("tenant", Text(), nullable=False),
        Column("card", Text(), nullable=False),
        Column("valid_from", String(length=7), nullable=False),
        Column("recorded_at", BigInteger(), nullable=False),
        PrimaryKeyConstraint("id"),
    )
    op.create_index("rate_card_assignments_by_tenant", "rate_card_assignments", ["tenant", "valid_from"])
    op.create_table(
        "invoices",
        Column("id", _ID, autoincrement=True, nullable=False),
        Column("month", String(length=7), nullable=False),
        Column("tenant", Text(), nullable=False),
        Column("number", Text(), nullable=False),
        Column("tax_name", Text(), nullable=False),
        Column("tax_micros", BigInteger(), nullable=False),
        Column("due", String(length=10), nullable=False),
        Column("recorded_at", BigInteger(), nullable=False),
        PrimaryKeyConstraint("id"),
    )
    op.create_index("invoices_by_tenant", "invoices", ["month", "tenant"])

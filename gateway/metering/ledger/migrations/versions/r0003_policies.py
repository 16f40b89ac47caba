"""How unused time is shared, as a standing rule."""

from alembic import op
from sqlalchemy import BigInteger, Column, Integer, PrimaryKeyConstraint, String, Text

revision = "0003"
down_revision = "0002"

_ID = BigInteger().with_variant(Integer, "sqlite")


def upgrade() -> None:
    op.create_table(
        "standing_policies",
        Column("id", _ID, nullable=False),
        Column("tenant", Text(), nullable=False),
        Column("policy", String(length=16), nullable=False),
        Column("shares", Text(), nullable=False),
        Column("valid_from", String(length=7), nullable=False),
        Column("recorded_at", BigInteger(), nullable=False),
        Column("recorded_by", Text(), nullable=False),
        Column("reason", Text(), nullable=False),
        PrimaryKeyConstraint("id"),
    )
    op.create_index("standing_policies_by_tenant", "standing_policies", ["tenant", "valid_from", "id"])

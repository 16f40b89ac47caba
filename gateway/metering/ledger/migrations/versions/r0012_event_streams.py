"""Event streams."""

from alembic import op
from sqlalchemy import BigInteger, Column, PrimaryKeyConstraint, String, Text, text

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    op.create_table(
        "event_streams",
        Column("name", String(length=16), nullable=False),
        Column("begun_at", BigInteger(), nullable=False),
        Column("batch", BigInteger(), server_default=text("0"), nullable=False),
        Column("record_id", String(length=36), server_default=text("''"), nullable=False),
        Column("advanced_at", BigInteger(), nullable=True),
        Column("failure", Text(), server_default=text("''"), nullable=False),
        PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "audit_outbox",
        Column("id", Text(), nullable=False),
        Column("digest", String(length=64), nullable=False),
        Column("at", BigInteger(), nullable=False),
        Column("seq", BigInteger(), nullable=False),
        PrimaryKeyConstraint("id", "digest"),
    )
    op.create_index("audit_outbox_by_time", "audit_outbox", ["at", "seq", "id", "digest"])

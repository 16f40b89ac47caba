"""What Florin itself asked engines for."""

from alembic import op
from sqlalchemy import BigInteger, Column, PrimaryKeyConstraint, String, Text

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.create_table(
        "engine_probes",
        Column("id", String(length=32), nullable=False),
        Column("engine", Text(), nullable=False),
        Column("at", BigInteger(), nullable=False),
        Column("prompt_tokens", BigInteger(), nullable=False),
        Column("cached_tokens", BigInteger(), nullable=False),
        Column("completion_tokens", BigInteger(), nullable=False),
        PrimaryKeyConstraint("id"),
    )
    op.create_index("engine_probes_by_engine", "engine_probes", ["engine", "at"])
    op.create_index("engine_probes_by_time", "engine_probes", ["at"])

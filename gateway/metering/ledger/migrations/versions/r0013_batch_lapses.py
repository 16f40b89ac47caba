"""How often a batch's workers have stopped responding."""

from alembic import op
from sqlalchemy import BigInteger, Column, text

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    op.add_column("batches", Column("lapses", BigInteger(), server_default=text("0"), nullable=False))

"""Lines, tiers and discounts of rate cards."""

from alembic import op
from sqlalchemy import Column, Text, text

revision = "0020"
down_revision = "0019"


def upgrade() -> None:
    op.add_column("rate_cards", Column("more", Text(), server_default=text("''"), nullable=False))

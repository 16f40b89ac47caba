"""Prices per adapter-hour, and what is sealed of residency."""

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Nothing yet."""

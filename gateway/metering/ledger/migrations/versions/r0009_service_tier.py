"""The service tier of usage records, files and batches."""

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    """Nothing yet."""

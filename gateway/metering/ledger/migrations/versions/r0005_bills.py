"""What the provider billed: accepted differences, true-ups, commitments."""

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    pass

"""What customers pay: rate cards, and exchange rates."""

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    pass

"""Who within a tenant used what: keys, end users, tags, cost centres."""

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    pass

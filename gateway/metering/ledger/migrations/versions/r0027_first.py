"""The first schema: what `schema/` declares. The first revision after a release writes here, as statements,
what that release created."""

from alembic import op

from gateway.metering.ledger.schema import schema

revision = "0027"
down_revision = None


def upgrade() -> None:
    schema.create_all(op.get_bind())

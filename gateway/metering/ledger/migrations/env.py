"""What alembic runs: in the transaction that `migrate` holds, and with logging as it is."""

from alembic import context

from gateway.metering.ledger.schema import schema

context.configure(connection=context.config.attributes["connection"], target_metadata=schema)
context.run_migrations()

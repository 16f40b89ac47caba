"""Alembic environment: runs in the transaction of `migrate` and leaves the logging configuration alone."""

from alembic import context

from gateway.metering.ledger.schema import schema

context.configure(connection=context.config.attributes["connection"], target_metadata=schema)
context.run_migrations()

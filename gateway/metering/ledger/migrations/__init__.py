"""The ledger's schema over time, by alembic. `schema.py` says what the tables are; the revisions in
`versions/` bring a database there from wherever it is.

To change a table: change schema.py, add `versions/rNNNN_….py` with the step from the last revision, and name
it in REVISIONS. Tests compare what the revisions make with schema.py, on both databases. A revision that was
released is never edited.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path

from sqlalchemy import Connection, Engine, inspect, text
from sqlalchemy.schema import SetColumnComment, SetTableComment

from gateway.metering.ledger.database import LedgerTooNewError, reading, writing
from gateway.metering.ledger.schema import schema

log = logging.getLogger("florin.metering")

REVISIONS = ("0001", "0002", "0003", "0004", "0005")
HEAD = REVISIONS[-1]
"""What this code works with."""
_LOCK = 0x666C6F72  # "flor": PostgreSQL's advisory lock while a worker migrates
_ALEMBIC = threading.Lock()
"""Alembic's `context` is one for the whole process, and knows no threads."""


def migrate(engine: Engine) -> None:
    """Bring the database to HEAD, whole or not at all, one worker at a time; the others wait, on SQLite as
    long as for any writer. Adding an index to many millions of records takes minutes.

    Raises LedgerTooNewError, LedgerUnavailableError."""
    with reading(engine) as connection:
        if _revision(connection) == HEAD:
            return
    with writing(engine) as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
        revision = _revision(connection)
        if revision == HEAD:
            return
        if revision is not None and revision not in REVISIONS:
            raise LedgerTooNewError(
                f"The ledger's database was made by a later Florin (its schema is {revision}, this one's "
                f"{HEAD}). Start that Florin, or give this one another database."
            )
        unnoted = revision is None and _has(connection, "usage_records")
        _run(connection, stamp=REVISIONS[0] if unnoted else None)
        _describe(connection)
        if revision is not None or unnoted:
            log.info("Ledger: the schema is now %s; it was %s.", HEAD, revision or REVISIONS[0])


def _revision(connection: Connection) -> str | None:
    """None: an empty database, or one from before 0.2.0, which kept no note of it."""
    if not _has(connection, "alembic_version"):
        return None
    revision: str | None = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    return revision


def _has(connection: Connection, table: str) -> bool:
    return inspect(connection).has_table(table)


def _run(connection: Connection, *, stamp: str | None) -> None:
    from alembic import command  # noqa: PLC0415  # takes a while to import, and is needed once in a year
    from alembic.config import Config  # noqa: PLC0415  # likewise

    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    with _ALEMBIC:
        if stamp is not None:
            command.stamp(config, stamp)
        command.upgrade(config, HEAD)


def _describe(connection: Connection) -> None:
    """Tell whoever looks into a PostgreSQL ledger with its own tools what is what. Not part of any revision:
    the words may change without one."""
    if connection.dialect.name != "postgresql":
        return
    for table in schema.sorted_tables:
        connection.execute(SetTableComment(table))
        for column in table.columns:
            if column.comment:
                connection.execute(SetColumnComment(column))

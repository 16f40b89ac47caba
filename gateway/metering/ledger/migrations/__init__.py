"""The ledger's schema over time, managed by Alembic. `schema/` declares the tables; the revisions in
`versions/` bring a database from any earlier release up to that declaration.

To change a table: change `schema/`, add `versions/rNNNN_….py` with the step from the last revision, and
append it to REVISIONS. Tests compare the result of the revisions with `schema/`, on both databases. Never
edit a released revision.

Gateways of the release before go on writing while the new ones are rolled out, and after a rollback. So a
revision only adds tables, and columns that may be left out. One that takes something away, or needs writers
to do something new, raises WRITABLE_SINCE to itself: gateways that start from then on must know it.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path

from sqlalchemy import Connection, Engine, inspect, select, text

from gateway.metering.ledger.chain import adopt
from gateway.metering.ledger.database import (
    UnknownSchemaError,
    insert,
    reading,
    writing,
)
from gateway.metering.ledger.schema import ledger_state

log = logging.getLogger("florin.metering")

REVISIONS = ("0027",)
"""Those with lower numbers are from before the first release."""
HEAD = REVISIONS[-1]
"""The revision that this code requires, or one after it that leaves it writing."""
WRITABLE_SINCE = "0027"
"""The oldest revision whose code may write to a ledger of HEAD; see above."""
SINCE = "writable_since"
"""Where a ledger says so, in `ledger_state`: as a number."""
_LOCK = 0x666C6F72  # "flor": PostgreSQL advisory lock, held while a worker migrates
_ALEMBIC = threading.Lock()
"""Alembic's `context` is global to the process and not thread-safe."""


def migrate(engine: Engine) -> None:
    """Upgrade the database to HEAD in one transaction. One worker migrates and the others wait; on SQLite
    they wait as long as for any writer. A ledger of a newer version that leaves this one writing stays as it
    is.

    Raises UnknownSchemaError, LedgerUnavailableError."""
    with reading(engine) as connection:
        revision = revision_of(connection)
        if revision == HEAD:
            return
        if revision is not None and revision < REVISIONS[0]:
            raise UnknownSchemaError(
                f"The ledger database is from before the first release of Florin (its schema is {revision}; "
                f"this version requires {HEAD}). Use another database."
            )
        if revision is not None and revision not in REVISIONS and _writable(connection):
            log.warning(
                "Ledger: its schema is %s, of a newer version of Florin, and can be used by this one (%s).",
                revision,
                HEAD,
            )
            return
    if revision is not None:
        log.info("Ledger: upgrading its schema from %s to %s, once nobody reads it.", revision, HEAD)
    with writing(engine) as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
        revision = revision_of(connection)
        if revision == HEAD:
            return
        if revision is not None and revision not in REVISIONS:
            raise UnknownSchemaError(
                f"The ledger database was created by a newer version of Florin (its schema is {revision}; "
                f"this version requires {HEAD}). Upgrade Florin, or use another database."
            )
        upgrade(connection, HEAD)
        if revision is not None:
            log.info("Ledger: schema upgraded from %s to %s.", revision, HEAD)


def revision_of(connection: Connection) -> str | None:
    """None for an empty database."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    revision: str | None = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    return revision


def _writable(connection: Connection) -> bool:
    """Whether the newer version that migrated the database lets this code write to it."""
    since = select(ledger_state.c.value).where(ledger_state.c.name == SINCE)
    first: int | None = connection.execute(since).scalar()
    return first is not None and first <= int(HEAD)


def _leave_writable(connection: Connection) -> None:
    put = insert(connection, ledger_state).values(name=SINCE, value=int(WRITABLE_SINCE))
    connection.execute(put.on_conflict_do_update(index_elements=["name"], set_={"value": put.excluded.value}))


def upgrade(connection: Connection, revision: str) -> None:
    """Run the steps up to that revision, in the caller's transaction."""
    from alembic import command  # noqa: PLC0415  # slow to import, and rarely needed
    from alembic.config import Config  # noqa: PLC0415  # likewise

    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    with _ALEMBIC:
        command.upgrade(config, revision)
    if revision == HEAD:
        adopt(connection)
        _leave_writable(connection)

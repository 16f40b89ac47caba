"""Which ledger this is: a random number, assigned at the first request for it.

It stays when the ledger is migrated, or its server replaced. `florin restore` makes another ledger of it.
A copy made by other means has the same number; since a copied directory may well be a second gateway's, an
SQLite ledger is also told apart by where its file lies.
"""

from __future__ import annotations

import hashlib
import secrets
import socket
from pathlib import Path
from typing import Final

from sqlalchemy import select

from gateway.metering.ledger.database import LedgerUnavailableError, insert
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import ledger_state

IDENTITY: Final = "identity"
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
"""The same in all containers of a host."""


def identity(ledger: Ledger) -> str:
    """The same for all who share the ledger; empty if it cannot be asked now."""
    try:
        return f"{_number(ledger):016x}{_place(ledger.file)}"
    except (LedgerUnavailableError, OSError):
        return ""


def _number(ledger: Ledger) -> int:
    query = select(ledger_state.c.value).where(ledger_state.c.name == IDENTITY)
    with ledger.read() as connection:
        number: int | None = connection.execute(query).scalar()
    if number is None:
        with ledger.write() as connection:
            fresh = {"name": IDENTITY, "value": secrets.randbits(63)}
            connection.execute(insert(connection, ledger_state).values(fresh).on_conflict_do_nothing())
            number = connection.execute(query).scalar_one()
    return number


def _place(file: Path | None) -> str:
    if file is None:
        return ""
    try:
        host = _BOOT.read_text().strip()
    except OSError:
        host = socket.gethostname()
    inode = file.stat()
    return f"-{hashlib.sha256(f'{host} {inode.st_dev} {inode.st_ino}'.encode()).hexdigest()[:8]}"

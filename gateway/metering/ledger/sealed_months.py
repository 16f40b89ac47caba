"""Whether the months that `periods` says are closed are those that Florin closed: the chain has each.

Whoever can write to the database could reopen a month, or close one, by a row of `periods`. So what decides
by these rows asks here first. It reads and hashes one row a month.
"""

from __future__ import annotations

import json

from sqlalchemy import Connection, select

from gateway.metering.ledger.chain import KINDS
from gateway.metering.ledger.database import LedgerUnavailableError
from gateway.metering.ledger.schema import ledger_chain


class MonthChangedError(LedgerUnavailableError):
    """A month was changed, removed or added past Florin: nothing that depends on it can be answered."""


def changed_months(connection: Connection) -> list[str]:
    """Months that are not as they were recorded, in order."""
    c = ledger_chain.c
    query = select(c.subject, c.content).where(c.kind == "month").order_by(c.number)
    sealed = {row.subject: row.content for row in connection.execute(query)}  # the last of each
    stored = dict(KINDS["month"].subjects(connection))
    subjects = sorted(sealed.keys() | stored.keys())
    return [json.loads(s)[0] for s in subjects if sealed.get(s, "") != stored.get(s, "")]


def check_months(connection: Connection) -> None:
    """Raises MonthChangedError."""
    if changed := changed_months(connection):
        raise MonthChangedError(
            f"{', '.join(changed)} in the ledger is not as it was recorded: florin cost verify says what was "
            "changed. Restore it before anything is computed from it."
        )

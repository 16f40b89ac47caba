"""Requests to close a month, where a second person has to do it."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, delete, insert, select

from gateway.costs.periods import iso
from gateway.metering.ledger.audit_log import record
from gateway.metering.ledger.chain import is_as_sealed, seal
from gateway.metering.ledger.continuity import next_batch
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import close_requests


def read_request(connection: Connection, month: str) -> dict[str, Any] | None:
    """As `{"request": …}`: who requested to close a month, and when."""
    row = connection.execute(select(close_requests).where(close_requests.c.month == month)).one_or_none()
    if row is None:
        return None
    return {"request": {"requested_by": row.requested_by, "requested_at": iso(row.requested_at)}}


def request_or_approve(ledger: Ledger, month: str, terms: str, *, now: int, actor: str) -> bool:
    """Whether another person has requested to close the month on the same terms, so that `actor` may close
    it. Otherwise it is requested now, which replaces a request on other terms, and one that was written past
    Florin.

    Raises LedgerUnavailableError."""
    with ledger.write() as connection:
        next_batch(connection)  # one after the other
        row = connection.execute(select(close_requests).where(close_requests.c.month == month)).one_or_none()
        if row is not None and row.terms == terms and is_as_sealed(connection, "close_request", month):
            return bool(row.requested_by != actor)
        connection.execute(delete(close_requests).where(close_requests.c.month == month))
        new = {"month": month, "terms": terms, "requested_at": now, "requested_by": actor}
        connection.execute(insert(close_requests), [new])
        seal(connection, "close_request", month)
        record(connection, actor, "period.request_close", month, {"terms": terms}, now)
        return False

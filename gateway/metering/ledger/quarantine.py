"""Records that the ledger could not accept, for a person to examine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import Connection, and_, func, or_, select, tuple_, update

from gateway.metering.ledger.audit_log import record
from gateway.metering.ledger.chain import seal
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.record_rows import RECORD
from gateway.metering.ledger.schema import quarantine, usage

Position = tuple[int, str, str]
"""(recorded_at, id, digest)"""


class NotQuarantinedError(Exception):
    """A record is not in quarantine."""


@dataclass(frozen=True, slots=True)
class Dismissal:
    """A person's decision that a record rightly is in no report and no bill."""

    by: str
    """Id of their key."""
    recorded_at: int
    """Unix microseconds."""
    reason: str


@dataclass(frozen=True, slots=True)
class Quarantined:
    id: str
    reason: str
    """`differs`: the ledger has this id with other content. `pruned`: it arrived after the records of its
    time were pruned. `excluded`: an operator excluded it."""
    recorded_at: int
    """Unix microseconds."""
    record: dict[str, Any]
    """As it was shipped: the fields of a UsageRecord."""
    digest: str
    stored: dict[str, Any] | None = None
    """For the reason `differs`: the stored record's values of the fields that differ. None: the ledger has no
    record with this id."""
    dismissal: Dismissal | None = None


def quarantined(ledger: Ledger, limit: int = 100, after: Position | None = None) -> list[Quarantined]:
    """Newest first. Raises LedgerUnavailableError."""
    q = quarantine.c
    query = select(quarantine).order_by(q.recorded_at.desc(), q.id, q.digest).limit(limit)
    if after is not None:
        same = and_(q.recorded_at == after[0], tuple_(q.id, q.digest) > after[1:])
        query = query.where(or_(q.recorded_at < after[0], same))
    with ledger.read() as connection:
        rows = connection.execute(query).all()
        stored = _stored(connection, [row.id for row in rows if row.reason == "differs"])
    entries = []
    for row in rows:
        content = orjson.loads(row.content)
        stored_fields = stored.get(row.id)
        differing = (
            None if stored_fields is None else {n: v for n, v in stored_fields.items() if content.get(n) != v}
        )
        dismissal = (
            None
            if row.dismissed_at is None
            else Dismissal(row.dismissed_by, row.dismissed_at, row.dismissed_reason)
        )
        entries.append(
            Quarantined(row.id, row.reason, row.recorded_at, content, row.digest, differing, dismissal)
        )
    return entries


def quarantined_count(ledger: Ledger) -> int:
    """Raises LedgerUnavailableError."""
    with ledger.read() as connection:
        return connection.execute(select(func.count()).select_from(quarantine)).scalar_one()


def quarantine_page(
    ledger: Ledger, limit: int, after: Position | None
) -> tuple[list[Quarantined], Position | None, int]:
    """A page, newest first; the position of its last if there are more; and how many there are in all.
    Raises LedgerUnavailableError."""
    entries = quarantined(ledger, limit + 1, after)
    shown = entries[:limit]
    last = shown[-1] if len(entries) > limit else None
    return (
        shown,
        None if last is None else (last.recorded_at, last.id, last.digest),
        quarantined_count(ledger),
    )


def dismiss(
    ledger: Ledger, ids: Sequence[str], *, reason: str, now: int, by: str, actor: str = ""
) -> list[str]:
    """Dismiss what is in quarantine under these ids. Returns the ids of those that were not dismissed before;
    a dismissal is never overwritten. `actor`: recorded in the audit log; empty to record nothing.

    Raises NotQuarantinedError, LedgerUnavailableError; then nothing is dismissed."""
    q = quarantine.c
    with ledger.write() as connection:
        known = set(connection.execute(select(q.id).where(q.id.in_(ids))).scalars())
        if missing := sorted(set(ids) - known):
            raise NotQuarantinedError(
                f"{missing[0][:80]} is not in quarantine: florin cost quarantine shows the records that are."
            )
        changed = connection.execute(
            update(quarantine)
            .where(q.id.in_(ids), q.dismissed_at.is_(None))
            .values(dismissed_at=now, dismissed_by=by, dismissed_reason=reason)
            .returning(q.id)
        ).scalars()
        dismissed = sorted(set(changed))
        for record_id in dismissed:
            seal(connection, "dismissal", record_id)
            record(connection, actor, "usage.dismiss", record_id, {"reason": reason}, now)
    return dismissed


def _stored(connection: Connection, ids: Sequence[str]) -> dict[str, Mapping[str, Any]]:
    query = select(*RECORD).where(usage.c.id.in_(ids))
    return {row["id"]: dict(row) for row in connection.execute(query).mappings()}

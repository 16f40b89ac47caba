"""The audit log: who did what to what. Append-only.

A note about the registry is written to Redis with its change, and shipped from there (`audit_shipper`). A
note about what lives in this database (prices, calibrations, bills, months) is written in the transaction of
the change. So no change is without its note, and no note without its change, whatever dies.

The key is the entry's id with the digest of the note. The same entry shipped twice is there once. And where
Redis lost its data and its clock went back, so that an id is given a second time, both notes are kept.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import orjson
from sqlalchemy import Column, ColumnElement, Connection, and_, func, select, true, tuple_

from adapters.store.protocol import AuditEntry, AuditNote
from gateway.metering.ledger.database import insert
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import audit_log

ACTIONS: dict[str, str] = {
    "registry.restore": "Put back into Redis what the gateway knew of a registry that was lost.",
    "registry.accept": "Went on with what Redis had, after it had lost something.",
    "tenant.add": "A tenant was added.",
    "tenant.update": "A tenant was changed.",
    "tenant.remove": "A tenant was removed.",
    "key.create": "A key was made.",
    "key.update": "A key was changed by `florin apply`.",
    "key.revoke": "A key was revoked.",
    "token.create": "A token was made with which the host of an engine can be enrolled, once.",
    "token.use": "A host was enrolled: it has a key of its own, and the engine's earlier keys were revoked.",
    "base.add": "A base model was made known.",
    "base.update": "What is known of a base model was changed.",
    "base.remove": "A base model was forgotten.",
    "engine.add": "An engine was registered.",
    "engine.update": "What is known of an engine was changed.",
    "engine.trust": "What an engine's base model answers was taken for right.",
    "engine.epoch": "An engine was started anew: another process, which holds nothing yet.",
    "engine.state": "An engine was cordoned, drained or made active.",
    "engine.stop": "An engine's host began to shut it down.",
    "engine.remove": "An engine was forgotten.",
    "adapter.add": "A version was registered.",
    "adapter.apply": "An adapter was changed by `florin apply`.",
    "adapter.count": "A number was set from which an adapter's versions are counted on.",
    "adapter.promote": "A version was made live.",
    "adapter.canary": "A version was given a part of the calls.",
    "adapter.rollback": "A canary was ended, or an earlier version made live again.",
    "adapter.pin": "An adapter was pinned.",
    "adapter.unpin": "An adapter was unpinned.",
    "adapter.retire": "A version was retired.",
    "adapter.release": "A version was released in spite of its serving status.",
    "adapter.remove": "An adapter was removed with all of its versions.",
    "version.quarantine": "A version answered wrongly after a load, and is not served.",
    "version.fail": "A version could not be loaded, and is not tried for a while.",
    "version.recover": "A version that had failed was loaded again.",
    "version.erase": "The files of a version that no engine can hold any more were removed.",
    "price.add": "A price was added.",
    "calibration.add": "A calibration was added.",
    "bill.import": "A GPU provider's bill was imported.",
    "bill.remove": "An imported bill was removed.",
    "period.close": "A month was closed.",
    "usage.exclude": "Records of an engine-hour that was set aside went to quarantine.",
}
"""Action → what it says. docs/reference/audit.md lists them."""

Position = tuple[int, int, str, str]
"""(at, seq, id, digest): the order of the log."""

_TEXT = 200
_WHOLE = 5000
"""Characters that are kept of an entry that cannot be kept."""
_PART = 200
"""Rows of one INSERT."""


@dataclass(frozen=True, slots=True)
class Logged:
    """One entry, wherever it is kept."""

    id: str
    digest: str
    at: int
    """Unix microseconds, UTC."""
    seq: int
    actor: str
    action: str
    subject: str
    version: str
    details: dict[str, Any]

    @property
    def position(self) -> Position:
        return self.at, self.seq, self.id, self.digest


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which entries. Of the texts, one that ends in `*` means all that begin like it; None means any."""

    subject: str | None = None
    actor: str | None = None
    action: str | None = None
    since: int | None = None
    until: int | None = None
    """Not included."""
    before: Position | None = None
    """Older than this: the last of the page before."""

    def takes(self, entry: Logged) -> bool:
        return (
            _alike(self.subject, entry.subject)
            and _alike(self.actor, entry.actor)
            and _alike(self.action, entry.action)
            and (self.since is None or entry.at >= self.since)
            and (self.until is None or entry.at < self.until)
            and (self.before is None or entry.position < self.before)
        )


def logged(entry: AuditEntry) -> Logged:
    return _logged(entry.id, entry.at, int(entry.id.partition("-")[2] or 0), entry.note)


def ship(ledger: Ledger, entries: Iterable[Logged]) -> None:
    """Take each entry once. Raises LedgerUnavailableError; then none is taken."""
    rows = [_row(entry) for entry in entries]
    if rows:
        with ledger.write() as connection:
            for first in range(0, len(rows), _PART):
                put = insert(connection, audit_log).on_conflict_do_nothing()
                connection.execute(put, rows[first : first + _PART])


def held(entry: Logged) -> Logged:
    """An entry that no database can hold as it is, made so that any can: under its own id and digest, with
    itself as a text in its details."""
    texts = {n: ascii(getattr(entry, n))[1:-1][:_TEXT] for n in ("actor", "action", "subject", "version")}
    details = {"not_as_it_was": ascii(entry)[:_WHOLE]}
    at, seq = (min(max(number, 0), 2**62) for number in (entry.at, entry.seq))
    return Logged(id=entry.id, digest=entry.digest, at=at, seq=seq, details=details, **texts)


def record(
    connection: Connection, actor: str, action: str, subject: str, details: dict[str, Any], now: int
) -> None:
    """In the write transaction of what it tells of. `now`: Unix microseconds. No actor: nothing is noted."""
    if actor:
        note = AuditNote(actor, action, subject, details=details)
        entry = _logged(f"{now // 1000}-{secrets.token_hex(6)}", now, 0, note)
        connection.execute(insert(connection, audit_log), [_row(entry)])


def read(ledger: Ledger, wanted: Wanted, limit: int) -> list[Logged]:
    """Newest first. Raises LedgerUnavailableError."""
    c = audit_log.c
    position = (c.at, c.seq, c.id, c.digest)
    where: list[ColumnElement[bool]] = [
        *_matches(c.subject, wanted.subject),
        *_matches(c.actor, wanted.actor),
        *_matches(c.action, wanted.action),
    ]
    if wanted.since is not None:
        where.append(c.at >= wanted.since)
    if wanted.until is not None:
        where.append(c.at < wanted.until)
    if wanted.before is not None:
        where.append(tuple_(*position) < wanted.before)
    query = select(audit_log).where(and_(true(), *where)).order_by(*(p.desc() for p in position)).limit(limit)
    with ledger.read() as connection:
        return [_read(row) for row in connection.execute(query).mappings()]


def _logged(id_: str, at: int, seq: int, note: AuditNote) -> Logged:
    # PostgreSQL keeps no NUL in a text.
    names: dict[str, Any] = {
        k: v.replace("\0", "\\0") if isinstance(v, str) else v for k, v in asdict(note).items()
    }
    digest = hashlib.sha256(orjson.dumps(names, option=orjson.OPT_SORT_KEYS)).hexdigest()
    return Logged(id=id_, digest=digest, at=at, seq=seq, **names)


def _row(entry: Logged) -> dict[str, Any]:
    return {**asdict(entry), "details": orjson.dumps(entry.details).decode()}


def _read(row: Mapping[Any, Any]) -> Logged:
    return Logged(**{**row, "details": orjson.loads(row["details"])})


def _alike(wanted: str | None, text: str) -> bool:
    if wanted is None:
        return True
    return text.startswith(wanted[:-1]) if wanted.endswith("*") else text == wanted


def _matches(column: Column[Any], wanted: str | None) -> list[ColumnElement[bool]]:
    if wanted is None:
        return []
    if wanted.endswith("*"):
        # Not LIKE, which on SQLite takes `a` for `A`.
        begin = wanted[:-1]
        return [func.substr(column, 1, len(begin)) == begin]
    return [column == wanted]

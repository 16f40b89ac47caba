"""The audit log: who did what to what. Append-only.

Notes about the registry are written to Redis together with the change, and shipped from there
(`audit_shipper`). Notes about data in this database (prices, calibrations, bills, months) are written in the
transaction of the change. So there is no change without its note, and no note without its change, even after
a crash.

The key is the entry's id and the digest of the note. An entry shipped twice is stored once. If Redis loses
its data and its clock goes back, so that an id is used again, both notes are kept.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import orjson
from sqlalchemy import Column, ColumnElement, Connection, and_, func, or_, select, true, tuple_

from adapters.store.protocol.registry import AuditEntry, AuditNote
from gateway.metering.ledger import audit_outbox, chain
from gateway.metering.ledger.database import insert
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import audit_log

log = logging.getLogger("florin.changes")

ACTIONS: dict[str, str] = {
    "registry.restore": "The registry was restored from a backup.",
    "registry.rewrite": "A lost registry was written to Redis again, from what the gateway knew.",
    "registry.accept": "The registry in Redis was accepted after Redis had lost a part of it.",
    "tenant.add": "A tenant was added.",
    "tenant.update": "A tenant was changed.",
    "tenant.suspend": "A tenant was suspended: its requests are refused.",
    "tenant.resume": "A suspended tenant was resumed.",
    "tenant.remove": "A tenant was removed.",
    "key.create": "A key was created.",
    "key.update": "A key was changed.",
    "key.rotate": "A key was replaced by a new one, and expires once the overlap is over.",
    "key.revoke": "A key was revoked.",
    "key.sign_in_link": "A link was created that signs in to the console once.",
    "token.create": "An enrolment token, valid once, was created for the host of an engine.",
    "token.use": "A host was enrolled: it got its own key, and the engine's earlier keys were revoked.",
    "base.add": "A base model was added.",
    "base.update": "A base model was changed.",
    "base.remove": "A base model was removed.",
    "engine.add": "An engine was registered.",
    "engine.update": "An engine was changed.",
    "engine.trust": "The answers of an engine's base model were accepted as the reference.",
    "engine.epoch": "An engine was restarted: a new process, which has nothing loaded yet.",
    "engine.state": "An engine was cordoned, drained or activated.",
    "engine.drain": "A drain of an engine was started: its adapters are loaded elsewhere first.",
    "engine.trial": "A trial of an engine was begun, changed or ended, or its guard has decided.",
    "engine.restart": "An engine's agent was told to restart it.",
    "engine.stop": "An engine's host started to shut it down.",
    "engine.remove": "An engine was removed.",
    "adapter.add": "A version was registered.",
    "adapter.apply": "An adapter was changed by `florin apply`.",
    "adapter.count": "The number of an adapter's next version was set.",
    "adapter.promote": "A version was made live.",
    "adapter.canary": "A version was given a share of the requests.",
    "adapter.rollback": "A canary was ended, or an earlier version was made live again.",
    "adapter.try": "An operator sent a request to a version, as its tenant.",
    "adapter.evaluate": "An evaluation of a version was started.",
    "adapter.evaluated": "An evaluation of a version ended: it passed, failed, or had no criterion.",
    "adapter.eval_policy": "The rule that an adapter's versions need a passing evaluation was changed.",
    "adapter.hold": "A canary's guard froze its weight.",
    "adapter.label": "An adapter's cost centre was changed.",
    "adapter.pin": "An adapter was pinned.",
    "adapter.unpin": "An adapter was unpinned.",
    "adapter.scale": "The bounds of an adapter's replicas were changed.",
    "adapter.retire": "A version was retired.",
    "adapter.release": "A version was released from its serving status.",
    "adapter.unshare": "An adapter is no longer shared with a tenant that was removed.",
    "adapter.remove": "An adapter was removed with all its versions.",
    "version.quarantine": "A version answered incorrectly after a load and is not served.",
    "version.fail": "A version could not be loaded and is not retried for a while.",
    "version.recover": "A version that had failed was loaded again.",
    "version.erase": "The files of a version that no engine can hold any longer were removed.",
    "price.add": "A price was added.",
    "price.correct": "A price was corrected or withdrawn. The earlier row is kept.",
    "exchange_rate.add": "An exchange rate was added.",
    "cost_budget.set": "A budget for the cost of a tenant, or of the installation, was set.",
    "cost_budget.remove": "A budget for cost was removed.",
    "power.set": "The power of a GPU type was stated.",
    "grid.set": "The emissions of a region's grid were stated.",
    "calibration.add": "A calibration was added.",
    "bill.import": "A GPU provider's bill was imported.",
    "bill.remove": "An imported bill was removed.",
    "bill.accept": "Differences between a bill and Florin's figures were accepted, with a reason.",
    "bill.withdraw_acceptance": "The acceptance of a difference was withdrawn.",
    "bill.true_up": "A month's cost was set to the invoice's; the difference became lines of its own.",
    "commitment.add": "A commitment was added.",
    "commitment.withdraw": "A commitment was withdrawn: it no longer counts.",
    "export.write": "The FOCUS file of a month was written by schedule, or written again.",
    "period.close": "A month was closed.",
    "period.request_close": "A month is to be closed by a second person.",
    "rate_card.add": "A version of a rate card was added.",
    "rate_card.assign": "A rate card was assigned to a tenant, or to all without one of their own.",
    "invoice.add": "A statement was issued as an invoice, or corrected by another or a credit note.",
    "credit.grant": "Prepaid credits were granted to a tenant.",
    "credit.refuse": "A payment that a webhook announced could not be granted as credits: see the details.",
    "credit.end": "The last month of prepaid credits was set.",
    "manual_line.add": "A fee, a charge, a credit or a refund was added to statements, or a fee was ended.",
    "manual_line.approve": "A second person approved a manual line.",
    "manual_line.withdraw": "A manual line that waited for approval was withdrawn.",
    "policy.set": "The policy for unused GPU time was set, for the installation or a tenant.",
    "file.delete": "A file of a tenant was deleted.",
    "batch.cancel": "A batch was cancelled.",
    "events.replay": "Events that had been sent were queued to be sent again.",
    "events.skip": "Events that waited for their receiver were discarded.",
    "usage.exclude": "Records of an engine-hour that was set aside were quarantined.",
    "usage.dismiss": "Records in quarantine were dismissed, with a reason: rightly in no bill.",
}
"""Action → its description. docs/reference/audit.md lists them."""

Position = tuple[int, int, str, str]
"""(at, seq, id, digest): the order of the log."""

_ABOUT_ADAPTERS = ("adapter.", "version.")
_ABOUT_KEYS = ("key.",)
_TEXT = 200
_WHOLE = 5000
"""Characters kept of an entry that cannot be stored unchanged."""
_PART = 200
"""Rows of one INSERT."""


@dataclass(frozen=True, slots=True)
class Logged:
    """One entry, from Redis or the ledger."""

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
class Subjects:
    """The subjects that one tenant may see, since it exists."""

    tenant: str
    keys: frozenset[str]
    """Ids of its keys."""
    since: int
    """Unix microseconds: an earlier tenant of this name was another."""

    def has(self, entry: Logged) -> bool:
        own = entry.action.startswith(_ABOUT_ADAPTERS) and entry.subject.startswith(f"{self.tenant}/")
        own = own or (entry.action.startswith(_ABOUT_KEYS) and entry.subject in self.keys)
        return own and entry.at >= self.since


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which entries to read. A text that ends in `*` is a prefix; None matches any."""

    subject: str | None = None
    actor: str | None = None
    action: str | None = None
    since: int | None = None
    until: int | None = None
    """Exclusive."""
    before: Position | None = None
    """Only entries older than this, the last of the previous page."""
    within: Subjects | None = None
    """Only entries about these; None: all."""

    def takes(self, entry: Logged) -> bool:
        return (
            _alike(self.subject, entry.subject)
            and _alike(self.actor, entry.actor)
            and _alike(self.action, entry.action)
            and (self.since is None or entry.at >= self.since)
            and (self.until is None or entry.at < self.until)
            and (self.before is None or entry.position < self.before)
            and (self.within is None or self.within.has(entry))
        )


def logged(entry: AuditEntry) -> Logged:
    return _logged(entry.id, entry.at, int(entry.id.partition("-")[2] or 0), entry.note)


def ship(ledger: Ledger, entries: Iterable[Logged]) -> None:
    """Store each entry once. Raises LedgerUnavailableError; then none is stored."""
    rows = [_row(entry) for entry in entries]
    if rows:
        with ledger.write() as connection:
            for first in range(0, len(rows), _PART):
                _put(connection, rows[first : first + _PART])


def held(entry: Logged) -> Logged:
    """A storable form of an entry that no database can hold unchanged: the same id and digest, and the entry
    as text in the details."""
    texts = {n: ascii(getattr(entry, n))[1:-1][:_TEXT] for n in ("actor", "action", "subject", "version")}
    details = {"not_as_it_was": ascii(entry)[:_WHOLE]}
    moment, seq = (min(max(number, 0), 2**62) for number in (entry.at, entry.seq))
    return Logged(id=entry.id, digest=entry.digest, at=moment, seq=seq, details=details, **texts)


def record(
    connection: Connection, actor: str, action: str, subject: str, details: dict[str, Any], now: int
) -> None:
    """In the write transaction of the change: record it. `now`: Unix microseconds. An empty actor records
    nothing.

    The log line outlives a database that loses its last commits: it says what to enter again."""
    if actor:
        log.info(
            "%s %s by %s: %s", action, subject, actor, orjson.dumps(details, default=str).decode()[:_WHOLE]
        )
        note = AuditNote(actor, action, subject, details=details)
        entry = _logged(f"{now // 1000}-{secrets.token_hex(6)}", now, 0, note)
        _put(connection, [_row(entry)])


def read(ledger: Ledger, filters: Wanted, limit: int) -> list[Logged]:
    """Newest first. Raises LedgerUnavailableError."""
    c = audit_log.c
    position = (c.at, c.seq, c.id, c.digest)
    where: list[ColumnElement[bool]] = [
        *_matches(c.subject, filters.subject),
        *_matches(c.actor, filters.actor),
        *_matches(c.action, filters.action),
    ]
    if filters.since is not None:
        where.append(c.at >= filters.since)
    if filters.until is not None:
        where.append(c.at < filters.until)
    if filters.before is not None:
        where.append(tuple_(*position) < filters.before)
    if filters.within is not None:
        own = filters.within
        adapters = and_(
            _begins(c.subject, f"{own.tenant}/"), or_(*(_begins(c.action, k) for k in _ABOUT_ADAPTERS))
        )
        keys = and_(c.subject.in_(own.keys), or_(*(_begins(c.action, k) for k in _ABOUT_KEYS)))
        where += [or_(adapters, keys), c.at >= own.since]
    query = select(audit_log).where(and_(true(), *where)).order_by(*(p.desc() for p in position)).limit(limit)
    with ledger.read() as connection:
        return [entry_of(row) for row in connection.execute(query).mappings()]


def _logged(id_: str, moment: int, seq: int, note: AuditNote) -> Logged:
    # PostgreSQL cannot store NUL in text.
    names: dict[str, Any] = {
        k: v.replace("\0", "\\0") if isinstance(v, str) else v for k, v in asdict(note).items()
    }
    digest = hashlib.sha256(orjson.dumps(names, option=orjson.OPT_SORT_KEYS)).hexdigest()
    return Logged(id=id_, digest=digest, at=moment, seq=seq, **names)


def _row(entry: Logged) -> dict[str, Any]:
    return {**asdict(entry), "details": orjson.dumps(entry.details).decode()}


def _put(connection: Connection, rows: list[dict[str, Any]]) -> None:
    c = audit_log.c
    put = insert(connection, audit_log).on_conflict_do_nothing().returning(c.id, c.digest, c.at, c.seq)
    new = [dict(row) for row in connection.execute(put, rows).mappings()]
    by_key = {(row["id"], row["digest"]): row for row in rows}
    keys = [(row["id"], row["digest"]) for row in new]
    chain.append(
        connection,
        [("audit", chain.subject_of(key), chain.content(audit_log, [by_key[key]])) for key in keys],
    )
    audit_outbox.queue(connection, new)


def entry_of(row: Mapping[Any, Any]) -> Logged:
    return Logged(**{**row, "details": orjson.loads(row["details"])})


def _alike(pattern: str | None, text: str) -> bool:
    if pattern is None:
        return True
    return text.startswith(pattern[:-1]) if pattern.endswith("*") else text == pattern


def _matches(column: Column[Any], pattern: str | None) -> list[ColumnElement[bool]]:
    if pattern is None:
        return []
    if pattern.endswith("*"):
        return [_begins(column, pattern[:-1])]
    return [column == pattern]


def _begins(column: Column[Any], begin: str) -> ColumnElement[bool]:
    """Not LIKE, which ignores case on SQLite."""
    return func.substr(column, 1, len(begin)) == begin

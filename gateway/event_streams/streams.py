"""What each stream has to send, how far it got, and how to send it again. In the ledger.

Both streams advance in one transaction after the receiver has taken a page. A crash in between sends the page
again, with the same ids.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

import orjson
from sqlalchemy import Connection, Select, and_, delete, func, select, tuple_, update

from gateway.costs.events.event_pages import Position, usage_events
from gateway.costs.periods import iso
from gateway.metering.ledger import audit_outbox as outbox
from gateway.metering.ledger.audit_log import Logged, entry_of, record
from gateway.metering.ledger.database import insert
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import audit_log, audit_outbox, event_streams, usage_records

StreamName = Literal["audit", "usage"]
STREAMS: Final[tuple[StreamName, ...]] = get_args(StreamName)

PAGE_BYTES: Final = 256 * 1024
"""Bytes of the audit events in one post; a larger event gets a post of its own."""
COUNTED: Final = 10_000
"""Waiting events are counted up to here."""
_STREAM: Final = event_streams.c
_USAGE: Final = usage_records.c


@dataclass(frozen=True, slots=True)
class Page:
    events: list[dict[str, Any]]
    """May be empty: records that nobody pays for."""
    advance: Callable[[Connection], None]
    """In a write transaction, once the receiver has taken the events."""
    more: bool


@dataclass(frozen=True, slots=True)
class StreamStatus:
    begun_at: int | None
    """None: no gateway has ever had a receiver for it."""
    waiting: int
    """Audit entries, or usage records; COUNTED: that or more."""
    oldest: int | None
    """When the oldest of them was made."""
    advanced_at: int | None
    failure: str
    """Why the last attempt failed; empty if it succeeded."""

    def lag(self, now: int) -> float:
        """Seconds since the oldest waiting event was made."""
        return 0.0 if self.oldest is None else max(0.0, (now - self.oldest) / 1e6)

    def stuck(self, now: int) -> float:
        """Seconds for which something has waited and nothing was taken."""
        if self.oldest is None:
            return 0.0
        since = max(self.oldest, self.advanced_at or 0, self.begun_at or 0)
        return max(0.0, (now - since) / 1e6)


def begin(ledger: Ledger, name: StreamName, now: int) -> None:
    """From now on, events of the stream wait for delivery. Does nothing if they do already. Raises
    LedgerUnavailableError."""
    with ledger.read() as connection:
        if _begun(connection, name):
            return
    with ledger.write() as connection:
        batch, record_id = _end(connection) if name == "usage" else (0, "")
        row = {"name": name, "begun_at": now, "batch": batch, "record_id": record_id}
        connection.execute(insert(connection, event_streams).on_conflict_do_nothing(), [row])


def read_page(ledger: Ledger, name: StreamName, *, source: str, limit: int) -> Page | None:
    """The next `limit` entries or records; None: nothing waits. Raises LedgerUnavailableError."""
    return _audit_page(ledger, source, limit) if name == "audit" else _usage_page(ledger, source, limit)


def note_failure(ledger: Ledger, name: StreamName, failure: str) -> None:
    """Raises LedgerUnavailableError."""
    with ledger.write() as connection:
        connection.execute(update(event_streams).where(_STREAM.name == name).values(failure=failure))


def advanced(connection: Connection, name: StreamName, now: int, *, taken: bool = True) -> None:
    """The receiver has taken something or, if not `taken`, an operator has decided what waits."""
    values: dict[str, Any] = {"advanced_at": now} | ({"failure": ""} if taken else {})
    connection.execute(update(event_streams).where(_STREAM.name == name).values(values))


def read_status(ledger: Ledger, name: StreamName) -> StreamStatus:
    """Raises LedgerUnavailableError."""
    with ledger.read() as connection:
        row = connection.execute(select(event_streams).where(_STREAM.name == name)).first()
        if row is None:
            return StreamStatus(None, 0, None, None, "")
        if name == "audit":
            waiting = select(audit_outbox.c.at).order_by(audit_outbox.c.at)
        else:
            behind = _after((row.batch, row.record_id))
            waiting = select(_USAGE.ended).where(behind).order_by(_USAGE.batch, _USAGE.id)
        oldest = connection.execute(waiting.limit(1)).scalar()
        count = _count(connection, waiting)
    return StreamStatus(row.begun_at, count, oldest, row.advanced_at, row.failure)


def replay(ledger: Ledger, name: StreamName, since: int, *, actor: str, now: int) -> int:
    """Queue what was made since then again. Returns how many entries, or records (at most COUNTED), wait that
    did not. Raises LedgerUnavailableError."""
    begin(ledger, name, now)
    with ledger.write() as connection:
        if name == "audit":
            count = outbox.queue_since(connection, since)
        else:
            count = _move(connection, _position_at(connection, since), back=True)
        advanced(connection, name, now, taken=False)
        record(connection, actor, "events.replay", name, {"since": iso(since), "events": count}, now)
    return count


def skip(ledger: Ledger, name: StreamName, until: int, *, actor: str, now: int) -> int:
    """Give up what waits and was made before then. Returns how many entries, or records (at most COUNTED).
    Raises LedgerUnavailableError."""
    begin(ledger, name, now)
    with ledger.write() as connection:
        if name == "audit":
            count = outbox.drop_before(connection, until)
        else:
            count = _move(connection, _position_at(connection, until), back=False)
        advanced(connection, name, now, taken=False)
        record(connection, actor, "events.skip", name, {"until": iso(until), "events": count}, now)
    return count


def audit_event(entry: Logged, source: str) -> dict[str, Any]:
    """A CloudEvent. An entry's id alone can be used twice if Redis lost its data; with the beginning of the
    digest, it names one note."""
    event: dict[str, Any] = {
        "specversion": "1.0",
        "id": f"{entry.id}.{entry.digest[:16]}",
        "source": source,
        "type": f"florin.audit.{entry.action}",
        "time": iso(entry.at),
        "datacontenttype": "application/json",
        "data": {
            "id": entry.id,
            "actor": entry.actor,
            "action": entry.action,
            "subject": entry.subject,
            "version": entry.version,
            "details": entry.details,
        },
    }
    return event | ({"subject": entry.subject} if entry.subject else {})  # CloudEvents has no empty subjects


def _audit_page(ledger: Ledger, source: str, limit: int) -> Page | None:
    waits, log = audit_outbox.c, audit_log.c
    query = (
        select(audit_log)
        .join(audit_outbox, and_(log.id == waits.id, log.digest == waits.digest))
        .order_by(waits.at, waits.seq, waits.id, waits.digest)
        .limit(limit + 1)
    )
    with ledger.read() as connection:
        entries = [entry_of(row) for row in connection.execute(query).mappings()]
    if not entries:
        return None
    events: list[dict[str, Any]] = []
    size = 0
    for entry in entries[:limit]:
        event = audit_event(entry, source)
        size += len(orjson.dumps(event))
        if events and size > PAGE_BYTES:
            break
        events.append(event)
    keys = [(entry.id, entry.digest) for entry in entries[: len(events)]]

    def advance(connection: Connection) -> None:
        connection.execute(delete(audit_outbox).where(tuple_(waits.id, waits.digest).in_(keys)))

    return Page(events, advance, more=len(entries) > len(events))


def _usage_page(ledger: Ledger, source: str, limit: int) -> Page | None:
    with ledger.read() as connection:
        before = _position(connection)
    events, after, more = usage_events(ledger, source=source, after=before, since=0, limit=limit)
    if after is None or after == before:
        return None
    batch, record_id = after

    def advance(connection: Connection) -> None:
        # Unless a replay moved the position meanwhile.
        unmoved = and_(_STREAM.name == "usage", _STREAM.batch == before[0], _STREAM.record_id == before[1])
        connection.execute(update(event_streams).where(unmoved).values(batch=batch, record_id=record_id))

    return Page(events, advance, more)


def _begun(connection: Connection, name: StreamName) -> bool:
    return connection.execute(select(1).where(_STREAM.name == name)).first() is not None


def _position(connection: Connection) -> Position:
    row = connection.execute(
        select(_STREAM.batch, _STREAM.record_id).where(_STREAM.name == "usage")
    ).one_or_none()
    return (0, "") if row is None else (row.batch, row.record_id)


def _end(connection: Connection) -> Position:
    """The position of the last record."""
    last = select(_USAGE.batch, _USAGE.id).order_by(_USAGE.batch.desc(), _USAGE.id.desc()).limit(1)
    row = connection.execute(last).one_or_none()
    return (0, "") if row is None else (row.batch, row.id)


def _position_at(connection: Connection, since: int) -> Position:
    """Behind this position is every record that ended since then, and few others."""
    first = connection.execute(select(func.min(_USAGE.batch)).where(_USAGE.ended >= since)).scalar()
    return _end(connection) if first is None else (first, "")


def _count(connection: Connection, query: Select[Any]) -> int:
    """At most COUNTED."""
    some = query.order_by(None).limit(COUNTED).subquery()
    return connection.execute(select(func.count()).select_from(some)).scalar_one()


def _after(position: Position) -> Any:
    return tuple_(_USAGE.batch, _USAGE.id) > position


def _move(connection: Connection, to: Position, *, back: bool) -> int:
    """Move the position back, or on. Returns the number of records in between."""
    now = _position(connection)
    first, last = (to, now) if back else (now, to)
    count = _count(connection, select(_USAGE.id).where(_after(first), ~_after(last)))
    if count:
        values = {"batch": to[0], "record_id": to[1]}
        connection.execute(update(event_streams).where(_STREAM.name == "usage").values(values))
    return count

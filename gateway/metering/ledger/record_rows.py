"""Usage records as rows of the ledger: inserted once each, compared with what is stored, read by the hour.

For `Ledger`, and for other write transactions in which attempts end.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import orjson
from sqlalchemy import ColumnElement, Connection, select, text, union_all
from sqlalchemy.sql.selectable import CompoundSelect

from gateway.metering.ledger.continuity import next_batch
from gateway.metering.ledger.database import insert
from gateway.metering.ledger.engine_hours import PLACE, EngineHour, mark_dirty, pruned_before, touched
from gateway.metering.ledger.schema import ACROSS_HOURS, quarantine, usage, usage_records
from gateway.metering.ledger.schema.usage import id_bytes, id_text
from gateway.metering.ledger.shared_names import SharedNames, shared_by
from gateway.metering.records import BATCH, FINAL, Outcome, UsageRecord
from gateway.units import HOUR

_LOG_ONLY = {"seq", "seen"}
_COLUMNS = tuple(name for name in UsageRecord._fields if name not in _LOG_ONLY)
RECORD = tuple(usage.c[name] for name in _COLUMNS)
SPAN = ("dispatched", "ended", *PLACE)
span_of = attrgetter(*SPAN)
"""When and where a record ran: see `touched`."""
_values = attrgetter(*_COLUMNS)
assert {*_COLUMNS, "batch", "tenant_id"} == set(usage.columns.keys())

# Written for each database: takes half to a tenth of the time of SQLAlchemy's multi-row VALUES.
_OWN = tuple(
    name for name in _COLUMNS if name in usage_records.columns and name not in {"id", "request_id", "tenant"}
)
_own = attrgetter(*_OWN)
STORED = ("id", "request_id", "tenant", "place", "names", *_OWN)
_INTO = f"INSERT INTO usage_records (batch, {', '.join(STORED)})"
_PUT_SQLITE = f"{_INTO} VALUES (?{', ?' * len(STORED)}) ON CONFLICT (id) DO NOTHING"
_TYPES = {"id": "bytea"} | {name: str(usage_records.c[name].type) for name in STORED[1:]}
_PUT_POSTGRESQL = text(
    f"{_INTO} SELECT :batch, r.* FROM json_to_recordset(CAST(:rows AS json)) AS r "  # noqa: S608  # our names
    f"({', '.join(f'{name} {type_}' for name, type_ in _TYPES.items())}) "
    "ON CONFLICT (id) DO NOTHING RETURNING id"
)


def put_new(connection: Connection, records: Sequence[UsageRecord]) -> set[str]:
    """In a write transaction: insert records of attempts that have just ended. Returns the ids of those that
    were not stored yet."""
    if not records:
        return set()
    check_final(records)
    new = put_records(connection, records, next_batch(connection), SharedNames())
    mark_dirty(connection, touched(span_of(record) for record in records if record.id in new))
    return new


def check_final(records: Iterable[UsageRecord]) -> None:
    for record in records:
        if record.seq != FINAL or record.ended is None:
            raise ValueError(f"only finals belong in the ledger, not {record.kind} {record.id}")


def pruned_records(connection: Connection, records: Sequence[UsageRecord]) -> list[UsageRecord]:
    """Those that are not stored and so old that they may have been removed."""
    since = pruned_before(connection)
    old = [record for record in records if (record.ended or 0) < since]
    stored = _held(connection, old) if old else {}
    return [record for record in old if record.id not in stored]


def put_records(
    connection: Connection, records: Sequence[UsageRecord], batch: int, names: SharedNames
) -> set[str]:
    """In a write transaction with this batch number: insert the records. Returns the ids that are new."""
    if not records:
        return set()
    rows = stored_rows(connection, records, names)
    if connection.dialect.name == "postgresql":
        listed = [dict(zip(STORED, (rf"\x{row[0].hex()}", *row[1:]), strict=True)) for row in rows]
        put = {"batch": batch, "rows": orjson.dumps(listed).decode()}
        return {id_text(new) for new in connection.execute(_PUT_POSTGRESQL, put).scalars()}
    done = connection.exec_driver_sql(_PUT_SQLITE, [(batch, *row) for row in rows])
    if done.rowcount == len(rows):
        return {record.id for record in records}
    table = usage_records.c
    mine = table.id.in_([record.id for record in records]), table.batch == batch
    return set(connection.execute(select(table.id).where(*mine)).scalars())


def stored_rows(
    connection: Connection, records: Sequence[UsageRecord], names: SharedNames
) -> list[tuple[Any, ...]]:
    """In a write transaction with a batch number: the records as STORED."""
    shared = list(map(shared_by, records))
    numbers = names.numbers(connection, set(shared))
    return [
        (*_stored_id(record), *numbers[values], *_own(record))
        for record, values in zip(records, shared, strict=True)
    ]


def _stored_id(record: UsageRecord) -> tuple[bytes, str | None]:
    """The id, and the request id unless it follows from that: see `record_id`."""
    stored, request_id = id_bytes(record.id), record.request_id
    return stored, None if request_id == f"req-{stored[:14].hex()}" else request_id


def differing_records(connection: Connection, records: Sequence[UsageRecord]) -> list[UsageRecord]:
    """Those whose content differs from that stored under their id, and that is not because a worker died
    between storing a batch's line with its record and logging that (see `held_finals`)."""
    stored = _held(connection, records)
    return [
        record
        for record in records
        if stored[record.id] != row_of(record) and not _died_after(record, stored[record.id])
    ]


def _died_after(record: UsageRecord, stored: Mapping[str, Any]) -> bool:
    """Whether `record` only says what was last known of an attempt whose own final record is stored."""
    return bool(
        record.outcome == Outcome.ORPHANED.value
        and record.service_tier == stored["service_tier"] == BATCH
        and stored["billable"]
        and record.request_id == stored["request_id"]
    )


def _held(connection: Connection, records: Sequence[UsageRecord]) -> dict[str, Mapping[str, Any]]:
    query = select(*RECORD).where(usage.c.id.in_([record.id for record in records]))
    return {r["id"]: dict(r) for r in connection.execute(query).mappings()}


def row_of(record: UsageRecord) -> dict[str, Any]:
    """As in `usage`, without what the ledger adds."""
    return dict(zip(_COLUMNS, _values(record), strict=True))


def to_quarantine(connection: Connection, rows: Iterable[dict[str, Any]], reason: str) -> None:
    """`rows`: as `row_of` makes them."""
    if content := [{**_content(row), "reason": reason} for row in rows]:
        connection.execute(insert(connection, quarantine).on_conflict_do_nothing(), content)


def _content(row: dict[str, Any]) -> dict[str, Any]:
    content = orjson.dumps(row, default=str, option=orjson.OPT_SORT_KEYS)
    return {
        "id": row["id"],
        "digest": hashlib.sha256(content).hexdigest(),
        "content": content.decode(),
        "recorded_at": time.time_ns() // 1000,
        "ended": row["ended"],
    }


def engine_hour_records(engine_hour: EngineHour, *columns: ColumnElement[Any]) -> CompoundSelect[Any]:
    """SELECT of the records that were in flight at some time in an engine-hour, unordered. Each half uses its
    own index, so the work is proportional to the records of the hour, not of the ledger."""
    hour, engine, gpu_type, gpu_count = engine_hour
    table, end = usage.c, hour + HOUR
    chosen = select(*(columns or RECORD)).where(
        table.engine == engine, table.gpu_type == gpu_type, table.gpu_count == gpu_count
    )
    return union_all(
        chosen.where(table.ended >= hour, table.ended < end),
        chosen.where(ACROSS_HOURS, table.ended >= end, table.dispatched < end),
    )

"""Usage records as rows of the ledger: inserted once each, compared with what is stored, read by the hour.

For `Ledger`, and for other write transactions in which attempts end.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any

import orjson
from sqlalchemy import ColumnElement, Connection, select, text, union_all
from sqlalchemy.sql.selectable import CompoundSelect

from gateway.metering.ledger.continuity import next_batch
from gateway.metering.ledger.database import insert
from gateway.metering.ledger.engine_hours import EngineHour, mark_dirty, pruned_before, touched
from gateway.metering.ledger.schema import ACROSS_HOURS, quarantine, usage_records
from gateway.metering.records import BATCH, Outcome, UsageRecord
from gateway.units import HOUR

_LOG_ONLY = {"seq", "seen"}
_COLUMNS = tuple(f.name for f in fields(UsageRecord) if f.name not in _LOG_ONLY)
RECORD = tuple(usage_records.c[name] for name in _COLUMNS)
_values = attrgetter(*_COLUMNS)
assert {*_COLUMNS, "batch"} == set(usage_records.columns.keys())

# Written for each database: takes half to a tenth of the time of SQLAlchemy's multi-row VALUES.
_INTO = f"INSERT INTO usage_records (batch, {', '.join(_COLUMNS)})"
_PUT_SQLITE = f"{_INTO} VALUES (?{', ?' * len(_COLUMNS)}) ON CONFLICT (id) DO NOTHING"
_PUT_POSTGRESQL = text(
    f"{_INTO} SELECT :batch, r.* FROM json_to_recordset(CAST(:rows AS json)) AS r "  # noqa: S608  # our names
    f"({', '.join(f'{c.name} {c.type}' for c in RECORD)}) ON CONFLICT (id) DO NOTHING RETURNING id"
)


def put_new(connection: Connection, records: Sequence[UsageRecord]) -> set[str]:
    """In a write transaction: insert records of attempts that have just ended. Returns the ids of those that
    were not stored yet."""
    if not records:
        return set()
    rows = [row_of(record) for record in records]
    new = put_rows(connection, rows, next_batch(connection))
    mark_dirty(connection, touched(row for row in rows if row["id"] in new))
    return new


def row_of(record: UsageRecord) -> dict[str, Any]:
    if record.kind != "final" or record.ended is None:
        raise ValueError(f"only finals belong in the ledger, not {record.kind} {record.id}")
    return dict(zip(_COLUMNS, _values(record), strict=True))


def pruned_rows(connection: Connection, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows that are not stored and so old that they may have been removed."""
    since = pruned_before(connection)
    old = [row for row in rows if row["ended"] < since]
    held = _held(connection, old) if old else {}
    return [row for row in old if row["id"] not in held]


def put_rows(connection: Connection, rows: Sequence[dict[str, Any]], batch: int) -> set[str]:
    """Insert the rows. Returns the ids that are new."""
    if connection.dialect.name == "postgresql":
        whole = {"batch": batch, "rows": orjson.dumps(rows).decode()}
        return set(connection.execute(_PUT_POSTGRESQL, whole).scalars())
    if not rows:
        return set()
    done = connection.exec_driver_sql(_PUT_SQLITE, [(batch, *row.values()) for row in rows])
    if done.rowcount == len(rows):
        return {row["id"] for row in rows}
    mine = usage_records.c.id.in_([row["id"] for row in rows]), usage_records.c.batch == batch
    return set(connection.execute(select(usage_records.c.id).where(*mine)).scalars())


def differing_rows(connection: Connection, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows whose content differs from that stored under their id, and that is not because a worker died
    between storing a batch's line with its record and logging that (see `held_finals`)."""
    held = _held(connection, rows)
    return [row for row in rows if held[row["id"]] != row and not _died_after(row, held[row["id"]])]


def _died_after(row: Mapping[str, Any], stored: Mapping[str, Any]) -> bool:
    """Whether `row` only says what was last known of an attempt whose own final record is stored."""
    return bool(
        row["outcome"] == Outcome.ORPHANED.value
        and row["service_tier"] == stored["service_tier"] == BATCH
        and stored["billable"]
        and row["request_id"] == stored["request_id"]
    )


def _held(connection: Connection, rows: Sequence[dict[str, Any]]) -> dict[str, Mapping[str, Any]]:
    query = select(*RECORD).where(usage_records.c.id.in_([row["id"] for row in rows]))
    return {r["id"]: dict(r) for r in connection.execute(query).mappings()}


def to_quarantine(connection: Connection, rows: Sequence[dict[str, Any]], reason: str) -> None:
    """`rows`: as in usage_records, without `batch`."""
    if rows:
        put = insert(connection, quarantine).on_conflict_do_nothing()
        connection.execute(put, [{**_content(row), "reason": reason} for row in rows])


def _content(row: dict[str, Any]) -> dict[str, Any]:
    content = orjson.dumps(row, default=str, option=orjson.OPT_SORT_KEYS)
    return {
        "id": row["id"],
        "digest": hashlib.sha256(content).hexdigest(),
        "content": content.decode(),
        "recorded_at": time.time_ns() // 1000,
    }


def engine_hour_records(engine_hour: EngineHour, *columns: ColumnElement[Any]) -> CompoundSelect[Any]:
    """SELECT of the records that were in flight at some time in an engine-hour, unordered. Each half uses its
    own index, so the work is proportional to the records of the hour, not of the ledger."""
    hour, engine, gpu_type, gpu_count = engine_hour
    table, end = usage_records.c, hour + HOUR
    chosen = select(*(columns or RECORD)).where(
        table.engine == engine, table.gpu_type == gpu_type, table.gpu_count == gpu_count
    )
    return union_all(
        chosen.where(table.ended >= hour, table.ended < end),
        chosen.where(ACROSS_HOURS, table.ended >= end, table.dispatched < end),
    )

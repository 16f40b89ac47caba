"""Storing the answers to a batch's lines, each once, with its usage record.

Why each line is answered once and billed once, whatever dies:

1. A line's answer and its usage record, the only billable one, are inserted in one transaction (`store`). So
   a line without a result was never billed, and runs again; a line with a result was billed, and never runs
   again: the key of `batch_results` is (batch, line).
2. Until that transaction has committed, the usage log of the worker knows the attempt as one that runs
   (`held_finals`). If the worker dies before, its successor closes the attempt as orphaned: recorded, and not
   billable. If it dies after, the orphan's record has the id of the one that is stored, which stays.
3. If the orphan's record came first (a worker that was taken for dead), `store` finds that the record is not
   new, and does not store that line: it runs again.
4. A lease that lapsed while the worker was slow lets two workers run a line. The second to store it finds the
   result, or that the batch is no longer its own; its attempt becomes retry waste.
5. If the database fails at the commit, the outcome is unknown. `store` is called again with the same answers,
   and finds those that were stored by their records' ids.

Every attempt has exactly one record all the same, with the engine's own counts; only what is billable
differs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, func, select, update
from sqlalchemy import insert as plain_insert

from gateway.batches.documents import Batch, BatchStatus
from gateway.batches.rows import columns, portions, read
from gateway.metering.ledger.record_rows import put_new
from gateway.metering.ledger.schema import batch_results, batches
from gateway.metering.records import UsageRecord

_STORING = (BatchStatus.IN_PROGRESS, BatchStatus.CANCELLING)


@dataclass(frozen=True, slots=True)
class Result:
    line: int
    failed: bool
    body: bytes
    """The line of the output or error file."""
    record: UsageRecord | None = None
    """Usage of the attempt that answered it; None: nothing is billed."""

    @property
    def record_id(self) -> str:
        return self.record.id if self.record is not None else ""


@dataclass(frozen=True, slots=True)
class Stored:
    delivered: frozenset[int]
    """Lines whose result is stored as given, now or before."""
    answered: frozenset[int]
    """Lines that have a result, whoever gave it."""
    owned: bool
    """The batch is still this worker's."""


def store(connection: Connection, batch_id: str, worker: str, results: Sequence[Result], now: int) -> Stored:
    """In a write transaction: store what is new of these results of different lines, and count it."""
    query = select(*columns(Batch)).where(batches.c.id == batch_id).with_for_update()
    batch_rows = read(Batch, query, connection)
    stored_records = _held(connection, batch_id, [result.line for result in results])
    done = {r.line for r in results if stored_records.get(r.line) == r.record_id}
    owned = bool(batch_rows) and batch_rows[0].owner == worker and batch_rows[0].status in _STORING
    if not owned:
        return Stored(frozenset(done), frozenset(stored_records), owned)
    new = [result for result in results if result.line not in stored_records]
    recorded = put_new(connection, [result.record for result in new if result.record is not None])
    new = [result for result in new if result.record is None or result.record_id in recorded]
    if new:
        rows = [
            {
                "batch": batch_id,
                "line": result.line,
                "failed": result.failed,
                "record": result.record_id,
                "body": result.body,
            }
            for result in new
        ]
        connection.execute(plain_insert(batch_results), rows)
        _count(connection, batch_id, new, now)
    lines = {result.line for result in new}
    return Stored(frozenset(done | lines), frozenset(stored_records.keys() | lines), owned)


def done_lines(connection: Connection, batch_id: str) -> set[int]:
    """The lines that have a result."""
    query = select(batch_results.c.line).where(batch_results.c.batch == batch_id)
    return set(connection.execute(query).scalars())


def sizes(connection: Connection, batch_id: str) -> dict[bool, tuple[int, int]]:
    """Lines and bytes of the error file (True) and of the output file (False)."""
    table = batch_results.c
    query = select(table.failed, func.count(), func.sum(func.length(table.body)))
    rows = connection.execute(query.where(table.batch == batch_id).group_by(table.failed))
    return {bool(failed): (int(count), int(size)) for failed, count, size in rows}


def _held(connection: Connection, batch_id: str, lines: Sequence[int]) -> dict[int, str]:
    """Line → the id of its result's usage record, or nothing: then the result is as good as any other."""
    records: dict[int, str] = {}
    table = batch_results.c
    for some in portions(lines):
        query = select(table.line, table.record).where(table.batch == batch_id, table.line.in_(some))
        records |= {row.line: row.record for row in connection.execute(query)}
    return records


def _count(connection: Connection, batch_id: str, new: Sequence[Result], now: int) -> None:
    table, records = batches.c, [result.record for result in new if result.record is not None]
    failed = sum(result.failed for result in new)
    connection.execute(
        update(batches)
        .where(table.id == batch_id)
        .values(
            completed=table.completed + len(new) - failed,
            failed=table.failed + failed,
            prompt_tokens=table.prompt_tokens + sum(r.prompt_tokens for r in records),
            cached_tokens=table.cached_tokens + sum(r.cached_tokens or 0 for r in records),
            completion_tokens=table.completion_tokens + sum(r.completion_tokens for r in records),
            reasoning_tokens=table.reasoning_tokens + sum(r.reasoning_tokens for r in records),
            progress_at=now,
            lapses=0,
        )
    )

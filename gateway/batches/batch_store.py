"""Batches in the ledger's database, and the leases by which workers run them.

A batch belongs to the worker that holds its lease. What a worker writes to it names the worker, so that one
that has lost the lease, and does not know yet, changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import orjson
from sqlalchemy import ColumnElement, Connection, and_, delete, exists, func, or_, select, update
from sqlalchemy import insert as plain_insert

from gateway.batches import results
from gateway.batches.documents import (
    CANCELLABLE,
    INPUT,
    OPEN,
    OUTPUT,
    Batch,
    BatchStatus,
    File,
    Owner,
    new_file_id,
)
from gateway.batches.lines import LineError
from gateway.batches.results import Result, Stored
from gateway.batches.rows import PROCESSED, Page, columns, one, page, read
from gateway.errors import FlorinError
from gateway.metering.ledger.audit_log import record
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import batches, files

_CANDIDATES: Final = 100
"""Batches that are looked at to find one for a worker."""


@dataclass(frozen=True, slots=True)
class BatchQuotas:
    """What a tenant may have at a time."""

    batches: int
    """Batches that have not ended."""
    lines: int
    """Lines of these batches that have no result."""


class LeaseLostError(Exception):
    """The batch is no longer this worker's."""


class BatchStore:
    """Blocks: call it in threads. Every method raises LedgerUnavailableError."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    # -- for the owner

    def create(self, batch: Batch, owner: Owner, quotas: BatchQuotas) -> Batch | None:
        """Create a batch, with the number of lines of its input file. None: there is no such file, or it is
        the output of another batch. Raises FlorinError for the quotas."""
        with self._ledger.write() as connection:
            file = one(connection, File, owner, batch.input_file, lock=True)
            if file is None or file.purpose != INPUT:
                return None
            count, waiting = _open(connection, batch)
            if count >= quotas.batches:
                raise FlorinError(
                    "quota_exceeded", f"This tenant's limit of {quotas.batches:,} open batches is reached."
                )
            if waiting + file.lines > quotas.lines:
                raise FlorinError(
                    "quota_exceeded",
                    f"The file has {file.lines:,} lines, and {waiting:,} of this tenant's are waiting: more "
                    f"than its limit of {quotas.lines:,} together.",
                )
            created = replace(batch, total=file.lines)
            connection.execute(plain_insert(batches), [asdict(created)])
            return created

    def get(self, owner: Owner, batch_id: str) -> Batch | None:
        with self._ledger.read() as connection:
            return one(connection, Batch, owner, batch_id)

    def list(
        self, owner: Owner | None, paging: Page, *, tenant: str = "", status: str = ""
    ) -> tuple[list[Batch], bool]:
        """See `rows.page`. `owner` None: an operator's list."""
        where: list[ColumnElement[bool]] = []
        if tenant:
            where.append(batches.c.tenant == tenant)
        if status:
            where.append(batches.c.status == status)
        with self._ledger.read() as connection:
            return page(connection, Batch, owner, paging, *where)

    def find(self, batch_id: str) -> Batch | None:
        """For operators."""
        with self._ledger.read() as connection:
            return _find(connection, batch_id)

    def cancel(self, owner: Owner | None, batch_id: str, *, actor: str, now: int) -> Batch | None:
        """Ask for a batch to be cancelled. None: there is no such batch. Raises FlorinError if it has ended.
        `owner` None: for operators."""
        with self._ledger.write() as connection:
            if owner is not None:
                batch = one(connection, Batch, owner, batch_id, lock=True)
            else:
                batch = _find(connection, batch_id, lock=True)
            if batch is None or batch.status == BatchStatus.CANCELLING:
                return batch
            if batch.status not in CANCELLABLE:
                raise FlorinError("conflict", f"{batch_id} cannot be cancelled: it is {batch.status}.")
            changed = {"status": BatchStatus.CANCELLING.value, "cancelling_at": now, "progress_at": now}
            connection.execute(update(batches).where(batches.c.id == batch_id).values(changed))
            record(connection, actor, "batch.cancel", batch_id, {"tenant": batch.tenant}, now)
            return replace(batch, status=BatchStatus.CANCELLING, cancelling_at=now, progress_at=now)

    # -- leases

    def claim(self, worker: str, now: int, until: int, *, most_of_tenant: int) -> Batch | None:
        """Lease the batch that has waited longest of the tenant with the fewest running, until `until`. None:
        nothing waits, or only of tenants of which this worker runs as many as it may."""
        free = select(batches.c.id).where(batches.c.status.in_(OPEN), batches.c.lease_until <= now)
        with self._ledger.read() as connection:  # which holds up no writer
            if connection.execute(free.limit(1)).first() is None:
                return None
        with self._ledger.write() as connection:
            table = batches.c
            query = select(*columns(Batch)).where(table.status.in_(OPEN), table.lease_until <= now)
            query = query.order_by(table.created_at, table.id).limit(_CANDIDATES)
            waiting = read(Batch, query.with_for_update(skip_locked=True), connection)
            if not waiting:
                return None
            running = _running(connection, now)
            own = {tenant: count for (tenant, who), count in running.items() if who == worker}
            able = [batch for batch in waiting if own.get(batch.tenant, 0) < most_of_tenant]
            if not able:
                return None
            everyone: dict[str, int] = {}
            for (tenant, _), count in running.items():
                everyone[tenant] = everyone.get(tenant, 0) + count
            chosen = min(able, key=lambda batch: everyone.get(batch.tenant, 0))
            lapses = chosen.lapses + bool(chosen.owner)  # whoever stops in order gives its leases back
            leased = {"owner": worker, "lease_until": until, "lapses": lapses}
            connection.execute(update(batches).where(table.id == chosen.id).values(leased))
            return replace(chosen, **leased)  # type: ignore[arg-type]  # the fields' types

    def renew(self, worker: str, ids: Sequence[str], until: int) -> dict[str, Batch]:
        """Renew leases. Returns the batches that are still this worker's, as they are now."""
        with self._ledger.write() as connection:
            leased = and_(batches.c.id.in_(ids), batches.c.owner == worker)
            connection.execute(update(batches).where(leased).values(lease_until=until))
            return {
                batch.id: batch for batch in read(Batch, select(*columns(Batch)).where(leased), connection)
            }

    def release(self, worker: str, ids: Iterable[str]) -> None:
        """Give leases back, so that other workers need not wait until they lapse."""
        with self._ledger.write() as connection:
            leased = and_(batches.c.id.in_(list(ids)), batches.c.owner == worker)
            connection.execute(update(batches).where(leased).values(owner="", lease_until=0))

    # -- for the worker that holds the lease; these raise LeaseLostError

    def start(self, worker: str, batch_id: str, *, total: int, model: str, now: int) -> Batch:
        """Every line is valid."""
        values = {
            "status": BatchStatus.IN_PROGRESS.value,
            "in_progress_at": now,
            "total": total,
            "model": model,
        }
        return self._advance(worker, batch_id, (BatchStatus.VALIDATING,), values, now)

    def fail(self, worker: str, batch_id: str, errors: Sequence[LineError], now: int) -> Batch:
        """Some lines are not valid."""
        values = {
            "status": BatchStatus.FAILED.value,
            "ended_at": now,
            "total": 0,
            "errors": _dumped(errors),
        }
        return self._advance(worker, batch_id, (BatchStatus.VALIDATING,), values, now)

    def store(self, worker: str, batch_id: str, line_results: Sequence[Result], now: int) -> Stored:
        """See `results.store`."""
        with self._ledger.write() as connection:
            return results.store(connection, batch_id, worker, line_results, now)

    def done_lines(self, batch_id: str) -> set[int]:
        with self._ledger.read() as connection:
            return results.done_lines(connection, batch_id)

    def finalize(self, worker: str, batch_id: str, now: int) -> Batch:
        """Every line has a result: no more are stored."""
        values = {"status": BatchStatus.FINALIZING.value, "finalizing_at": now}
        return self._advance(worker, batch_id, (BatchStatus.IN_PROGRESS,), values, now)

    def end(
        self,
        worker: str,
        batch: Batch,
        status: BatchStatus,
        now: int,
        *,
        keep: int,
        errors: Sequence[LineError] = (),
    ) -> Batch:
        """End a batch whose lines all have a result: its files appear, and its results never change again.
        `keep`: microseconds, where the batch does not say how long. `errors`: why it failed."""
        until = now + (batch.output_keep or keep)
        with self._ledger.write() as connection:
            current = _owned(connection, worker, batch.id, OPEN)
            outputs = {
                failed: _output(current, failed, new_file_id(), now, until) for failed in (False, True)
            }
            sizes = results.sizes(connection, batch.id)
            rows = [
                replace(file, lines=sizes[failed][0], bytes=sizes[failed][1])
                for failed, file in outputs.items()
                if failed in sizes
            ]
            if rows:
                connection.execute(plain_insert(files), [asdict(file) for file in rows])
            values = {
                "status": status.value,
                "ended_at": now,
                "progress_at": now,
                "output_file": outputs[False].id if False in sizes else "",
                "error_file": outputs[True].id if True in sizes else "",
                "owner": "",
                "lease_until": 0,
                "errors": _dumped(errors),
            }
            connection.execute(update(batches).where(batches.c.id == batch.id).values(values))
            return replace(current, **values)  # type: ignore[arg-type]  # the fields' types

    # -- upkeep

    def stuck(self, since: int) -> int:
        """Batches that have not ended, and had no progress since then."""
        query = select(func.count()).where(batches.c.status.in_(OPEN), batches.c.progress_at < since)
        with self._ledger.read() as connection:
            return int(connection.execute(query).scalar_one())

    def sweep(self, before: int) -> int:
        """Remove batches that ended before then and have no files left. Returns their number."""
        left = exists().where(or_(files.c.batch == batches.c.id, files.c.id == batches.c.input_file))
        gone = delete(batches).where(batches.c.ended_at < before, ~left)
        with self._ledger.write() as connection:
            return connection.execute(gone).rowcount

    def _advance(
        self, worker: str, batch_id: str, before: Sequence[BatchStatus], values: dict[str, Any], now: int
    ) -> Batch:
        values = {**values, "progress_at": now, "lapses": 0}
        with self._ledger.write() as connection:
            batch = _owned(connection, worker, batch_id, before)
            connection.execute(update(batches).where(batches.c.id == batch_id).values(values))
            return replace(batch, **values)


def _dumped(errors: Sequence[LineError]) -> str:
    return orjson.dumps([error.document() for error in errors]).decode() if errors else ""


def _find(connection: Connection, batch_id: str, *, lock: bool = False) -> Batch | None:
    query = select(*columns(Batch)).where(batches.c.id == batch_id)
    rows = read(Batch, query.with_for_update() if lock else query, connection)
    return rows[0] if rows else None


def _owned(connection: Connection, worker: str, batch_id: str, before: Sequence[str]) -> Batch:
    batch = _find(connection, batch_id, lock=True)
    if batch is None or batch.owner != worker or batch.status not in before:
        raise LeaseLostError
    return batch


def _open(connection: Connection, batch: Batch) -> tuple[int, int]:
    """The tenant's batches that have not ended, and their lines without a result."""
    table = batches.c
    query = select(
        func.count(), func.coalesce(func.sum(table.total - table.completed - table.failed), 0)
    ).where(table.tenant == batch.tenant, table.tenant_since == batch.tenant_since, table.status.in_(OPEN))
    count, waiting = connection.execute(query).one()
    return int(count), int(waiting)


def _running(connection: Connection, now: int) -> dict[tuple[str, str], int]:
    """(Tenant, worker) → how many of its batches that worker runs."""
    table = batches.c
    query = select(table.tenant, table.owner, func.count()).where(
        table.status.in_(OPEN), table.lease_until > now
    )
    rows = connection.execute(query.group_by(table.tenant, table.owner))
    return {(tenant, owner): int(count) for tenant, owner, count in rows}


def _output(batch: Batch, failed: bool, file_id: str, now: int, until: int) -> File:  # noqa: FBT001  # which file
    return File(
        id=file_id,
        tenant=batch.tenant,
        tenant_since=batch.tenant_since,
        key_id=batch.key_id,
        purpose=OUTPUT,
        filename=f"{batch.id}_{'error' if failed else 'output'}.jsonl",
        bytes=0,
        lines=0,
        status=PROCESSED,
        created_at=now,
        expires_at=until,
        batch=batch.id,
        errors=failed,
    )

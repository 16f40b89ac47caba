"""Evaluations in the ledger's database.

Each step is one transaction that names the status it starts from: of two workers that take the same step,
one does, and the other changes nothing. A step creates the batch that it is about. So there is no evaluation
without its batch, and none with two.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

import orjson
from sqlalchemy import ColumnElement, Connection, Select, func, or_, select, update
from sqlalchemy import insert as plain_insert

from gateway.batches.documents import Batch
from gateway.errors import FlorinError
from gateway.evaluations.documents import OPEN, Evaluation, EvaluationStatus
from gateway.metering.ledger.audit_log import record
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import batch_results, batches, evaluations

MOST_OPEN: Final = 4
"""Evaluations that a tenant may run at a time."""
_RESULTS: Final = 64
"""Results that are read at a time."""


@dataclass(frozen=True, slots=True)
class Ready:
    """An evaluation whose batch has ended."""

    evaluation: Evaluation
    data: bytes
    batch: Batch


class EvaluationStore:
    """Blocks: call it in threads. Every method raises LedgerUnavailableError."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def create(self, evaluation: Evaluation, data: bytes, batch: Batch) -> None:
        """With its first batch, whose file is there. Raises FlorinError for the quota."""
        table = evaluations.c
        mine = table.tenant == evaluation.tenant, table.tenant_since == evaluation.tenant_since
        with self._ledger.write() as connection:
            query = select(func.count()).where(*mine, table.status.in_(OPEN))
            if connection.execute(query).scalar_one() >= MOST_OPEN:
                raise FlorinError(
                    "quota_exceeded", f"{MOST_OPEN} evaluations of this tenant are running: wait for one."
                )
            connection.execute(plain_insert(evaluations), [{**asdict(evaluation), "data": data}])
            connection.execute(plain_insert(batches), [asdict(batch)])
            _note(connection, evaluation, evaluation.actor, "adapter.evaluate", {}, evaluation.created_at)

    def get(self, adapter: str, since: int, evaluation_id: str) -> tuple[Evaluation, Batch | None] | None:
        """With the batch that runs, or ran last. None: the adapter has none of this id."""
        query = _select().where(*_of(adapter, since), evaluations.c.id == evaluation_id)
        with self._ledger.read() as connection:
            rows = _read(connection, query)
            return (rows[0], _batch(connection, rows[0])) if rows else None

    def list(self, adapter: str, since: int, limit: int) -> list[Evaluation]:
        """Newest first."""
        order = evaluations.c.created_at.desc(), evaluations.c.id.desc()
        with self._ledger.read() as connection:
            return _read(connection, _select().where(*_of(adapter, since)).order_by(*order).limit(limit))

    def deciding(
        self, adapter: str, since: int, *, version: int, digest: str, data_sha256: str = ""
    ) -> Evaluation | None:
        """The last evaluation that had something to pass, of exactly these files."""
        table = evaluations.c
        where = [*_of(adapter, since), table.version == version, table.digest == digest]
        where.append(or_(table.passed.is_(True), table.passed.is_(False)))
        if data_sha256:
            where.append(table.data_sha256 == data_sha256)
        order = table.created_at.desc(), table.id.desc()
        with self._ledger.read() as connection:
            rows = _read(connection, _select().where(*where).order_by(*order).limit(1))
        return rows[0] if rows else None

    def latest(self, adapter: str, since: int) -> dict[int, Evaluation]:
        """Version → its last evaluation that has ended."""
        table = evaluations.c
        newest = func.max(table.created_at)
        ended = *_of(adapter, since), table.ended_at.is_not(None)
        last = select(table.version, newest.label("at")).where(*ended).group_by(table.version).subquery()
        query = _select().join(last, (table.version == last.c.version) & (table.created_at == last.c.at))
        with self._ledger.read() as connection:
            return {evaluation.version: evaluation for evaluation in _read(connection, query.where(*ended))}

    # -- for the worker

    def any_open(self) -> bool:
        query = select(evaluations.c.id).where(evaluations.c.status.in_(OPEN)).limit(1)
        with self._ledger.read() as connection:
            return connection.execute(query).first() is not None

    def claim(self, now: int, until: int) -> Ready | None:
        """An evaluation whose batch has ended, which no other worker advances until then."""
        table = evaluations.c
        query = _select(table.data).join(batches, batches.c.id == _current()).order_by(table.created_at)
        query = query.where(table.status.in_(OPEN), batches.c.ended_at.is_not(None), table.lease_until <= now)
        with self._ledger.read() as connection:  # which holds up no writer
            if connection.execute(query.limit(1)).first() is None:
                return None
        with self._ledger.write() as connection:
            lock = query.limit(1).with_for_update(of=evaluations, skip_locked=True)
            row = connection.execute(lock).mappings().one_or_none()
            if row is None:
                return None
            evaluation = Evaluation(**{f.name: row[f.name] for f in fields(Evaluation)})
            put = update(evaluations).where(table.id == evaluation.id).values(lease_until=until)
            connection.execute(put)
            batch = _batch(connection, evaluation)
        assert batch is not None  # the query has joined it
        return Ready(evaluation, bytes(row["data"] or b""), batch)

    def results(self, batch_id: str) -> Iterator[bytes]:
        """The output and error lines, each part read in a transaction of its own."""
        table, last_line = batch_results.c, 0
        while True:
            query = select(table.line, table.body).where(table.batch == batch_id, table.line > last_line)
            with self._ledger.read() as connection:
                rows = connection.execute(query.order_by(table.line).limit(_RESULTS)).all()
            if not rows:
                return
            yield from (bytes(row.body) for row in rows)
            last_line = rows[-1].line

    def judge(self, evaluation: Evaluation, batch: Batch) -> bool:
        """The cases are answered: the judge's batch begins. Returns False if another worker was faster."""
        table = evaluations.c
        values = {"status": EvaluationStatus.JUDGING.value, "judge_batch": batch.id, "lease_until": 0}
        put = update(evaluations).where(
            table.id == evaluation.id, table.status == EvaluationStatus.ANSWERING.value
        )
        with self._ledger.write() as connection:
            if not connection.execute(put.values(values)).rowcount:
                return False
            connection.execute(plain_insert(batches), [asdict(batch)])
            return True

    def end(
        self,
        evaluation: Evaluation,
        status: EvaluationStatus,
        summary: dict[str, Any],
        *,
        passed: bool | None,
        actor: str,
        now: int,
    ) -> bool:
        """The data is dropped. Returns False if another worker was faster."""
        table = evaluations.c
        values = {
            "status": status.value,
            "ended_at": now,
            "passed": passed,
            "summary": orjson.dumps(summary).decode(),
            "lease_until": 0,
            "data": None,
        }
        put = update(evaluations).where(table.id == evaluation.id, table.status.in_(OPEN))
        with self._ledger.write() as connection:
            if not connection.execute(put.values(values)).rowcount:
                return False
            details = {"status": status.value, "passed": passed, "score": summary.get("score")}
            _note(connection, evaluation, actor, "adapter.evaluated", details, now)
            return True


def _note(
    connection: Connection,
    evaluation: Evaluation,
    actor: str,
    action: str,
    details: dict[str, Any],
    now: int,
) -> None:
    known = {
        "evaluation": evaluation.id,
        "version": f"v{evaluation.version}",
        "digest": evaluation.digest,
        "data_sha256": evaluation.data_sha256,
    }
    record(connection, actor, action, evaluation.adapter, known | details, now)


def _of(adapter: str, since: int) -> Sequence[ColumnElement[bool]]:
    return evaluations.c.adapter == adapter, evaluations.c.tenant_since == since


def _select(*more: ColumnElement[Any]) -> Select[Any]:
    return select(*(evaluations.c[field.name] for field in fields(Evaluation)), *more)


def _read(connection: Connection, query: Select[Any]) -> list[Evaluation]:
    return [Evaluation(**row) for row in connection.execute(query).mappings()]


def _current() -> ColumnElement[str]:
    """The batch that an evaluation waits for."""
    return func.coalesce(func.nullif(evaluations.c.judge_batch, ""), evaluations.c.batch)


def _batch(connection: Connection, evaluation: Evaluation) -> Batch | None:
    batch_id = evaluation.judge_batch or evaluation.batch
    query = select(*(batches.c[field.name] for field in fields(Batch))).where(batches.c.id == batch_id)
    rows = [Batch(**row) for row in connection.execute(query).mappings()]
    return rows[0] if rows else None

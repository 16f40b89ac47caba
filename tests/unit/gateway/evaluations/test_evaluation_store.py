"""On both databases."""

from __future__ import annotations

from dataclasses import asdict, replace

import orjson
import pytest
from sqlalchemy import select, update

from gateway.batches.documents import Batch, Owner
from gateway.batches.file_store import FileStore
from gateway.errors import FlorinError
from gateway.evaluations.batch_files import write_batch
from gateway.evaluations.documents import (
    Evaluation,
    EvaluationPlan,
    EvaluationStatus,
    Metric,
    new_evaluation_id,
)
from gateway.evaluations.evaluation_store import MOST_OPEN, EvaluationStore
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import batches, evaluations

NOW = 1_800_000_000_000_000


def evaluation(**fields: object) -> Evaluation:
    made = Evaluation(
        id=new_evaluation_id(), tenant="acme", tenant_since=1, adapter="acme/support", version=2,
        digest="sha256:00", against="", against_digest="", plan=orjson.dumps(asdict(EvaluationPlan(Metric.EXACT))).decode(),
        data_sha256="ab" * 32, cases=1, status=EvaluationStatus.ANSWERING.value, batch="", judge_batch="", key_id="k",
        actor="bootstrap", created_at=NOW, ended_at=None, passed=None, summary="", lease_until=0,
    )  # fmt: skip
    return replace(made, **fields)


def batch(ledger: Ledger, of: Evaluation) -> Batch:
    lines = [b"x" * 200_000 + b"\n"] * 3  # more than a chunk
    return write_batch(
        FileStore(ledger), lines, evaluation=of.id, tenant="acme", since=1, key_id="k",
        endpoint="/v1/chat/completions", now=NOW, keep=1000,
    )  # fmt: skip


def created(ledger: Ledger, **fields: object) -> Evaluation:
    made = evaluation(**fields)
    first = batch(ledger, made)
    made = replace(made, batch=first.id)
    EvaluationStore(ledger).create(made, b"data", first)
    return made


def end_batches(ledger: Ledger) -> None:
    with ledger.write() as connection:
        connection.execute(update(batches).values(ended_at=NOW, status="completed"))


def test_a_batch_s_file_holds_its_lines(ledger: Ledger):
    made = batch(ledger, evaluation())
    file = FileStore(ledger).get(Owner("acme", 1), made.input_file)
    assert file is not None
    assert (file.lines, file.bytes, made.total) == (3, 600_003, 3)
    assert b"".join(FileStore(ledger).parts(file)).count(b"\n") == 3


def test_one_worker_advances_an_evaluation_and_another_when_it_has_died(ledger: Ledger):
    store, made = EvaluationStore(ledger), created(ledger)
    assert store.claim(NOW, NOW + 10) is None  # its batch runs
    end_batches(ledger)
    ready = store.claim(NOW, NOW + 10)
    assert ready is not None
    assert (ready.evaluation.id, ready.data, ready.batch.id) == (made.id, b"data", made.batch)
    assert store.claim(NOW + 9, NOW + 20) is None
    assert store.claim(NOW + 10, NOW + 20) is not None


def test_a_step_is_taken_once(ledger: Ledger):
    store, made = EvaluationStore(ledger), created(ledger)
    judges = [batch(ledger, made) for _ in range(2)]
    assert [store.judge(made, judge) for judge in judges] == [True, False]
    found = store.get("acme/support", 1, made.id)
    assert found is not None
    assert (found[0].status, found[0].judge_batch, found[1] and found[1].id) == (
        "judging",
        judges[0].id,
        judges[0].id,
    )
    ends = [
        store.end(
            made, EvaluationStatus.COMPLETED, {"score": score}, passed=score > 0, actor="florin", now=NOW + 5
        )
        for score in (1.0, 0.0)
    ]
    assert ends == [True, False]
    found = store.get("acme/support", 1, made.id)
    assert found is not None
    assert (found[0].passed, orjson.loads(found[0].summary)) == (True, {"score": 1.0})
    assert store.judge(made, judges[1]) is False
    with ledger.read() as connection:
        assert connection.execute(select(evaluations.c.data)).scalar_one() is None


def test_a_tenant_has_a_limit_of_its_own(ledger: Ledger):
    made = [created(ledger) for _ in range(MOST_OPEN)]
    with pytest.raises(FlorinError, match="are running"):
        created(ledger)
    created(ledger, tenant="bolt", adapter="bolt/support")
    EvaluationStore(ledger).end(made[0], EvaluationStatus.FAILED, {}, passed=None, actor="florin", now=NOW)
    created(ledger)


def test_what_decides_is_the_last_of_these_files_and_data(ledger: Ledger):
    store = EvaluationStore(ledger)

    def run(at: int, passed: bool | None, **fields: object) -> Evaluation:
        made = created(ledger, created_at=NOW + at, **fields)
        store.end(made, EvaluationStatus.COMPLETED, {}, passed=passed, actor="florin", now=NOW + 100)
        return made

    def decides(**fields: object) -> str | None:
        wanted = {"version": 2, "digest": "sha256:00"} | fields
        found = store.deciding("acme/support", 1, **wanted)
        return found and found.id

    assert decides() is None
    good = run(1, passed=True)
    run(2, passed=None)
    run(3, passed=True, digest="sha256:11")
    run(4, passed=True, version=3)
    run(5, passed=True, tenant_since=2)
    assert decides() == good.id
    other = run(6, passed=False, data_sha256="cd" * 32)
    assert decides() == other.id
    assert decides(data_sha256="ab" * 32) == good.id
    created(ledger, created_at=NOW + 9)  # it runs, and decides nothing yet
    assert decides() == other.id
    assert {n: e.created_at - NOW for n, e in store.latest("acme/support", 1).items()} == {2: 6, 3: 4}
    assert [e.created_at - NOW for e in store.list("acme/support", 1, 3)] == [9, 6, 4]
    assert store.get("acme/support", 2, good.id) is None
    assert store.get("acme/other", 1, good.id) is None

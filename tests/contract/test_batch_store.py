"""Files and batches on both databases: every way in which a worker can die between two steps."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import func, select

from gateway.batches.batch_store import BatchQuotas, BatchStore, LeaseLostError
from gateway.batches.documents import Batch, BatchStatus, File, Owner
from gateway.batches.file_store import FileStore
from gateway.batches.lines import LineError
from gateway.batches.results import Result
from gateway.batches.rows import Page, UnknownCursorError
from gateway.errors import FlorinError
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import batch_results, batches, file_chunks, files, quarantine
from gateway.metering.records import Outcome, orphaned
from tests.unit.gateway.metering.make import intent, record

pytestmark = pytest.mark.both_databases
"""Claims lock rows, and results are upserted: PostgreSQL does both otherwise."""

ACME, BOLT = Owner("acme", 1), Owner("bolt", 1)
QUOTAS = BatchQuotas(100, 1000)
MANY = {"most_files": 100}
T = 1_000_000
FILE = File("file-1", "acme", 1, "k1", "batch", "in.jsonl", 0, 0, "uploading", T, 50 * T)
BATCH = Batch(
    id="batch_1", tenant="acme", tenant_since=1, key_id="k1", endpoint="/v1/chat/completions", input_file="file-1",
    status="validating", created_at=T, expires_at=100 * T, in_progress_at=None, cancelling_at=None,
    finalizing_at=None, ended_at=None, progress_at=T, total=0, completed=0, failed=0, prompt_tokens=0,
    cached_tokens=0, completion_tokens=0, reasoning_tokens=0, model="", metadata="", errors="", output_file="",
    error_file="", output_keep=0, owner="", lease_until=0,
)  # fmt: skip


@pytest.fixture
def file_store(ledger: Ledger) -> FileStore:
    return FileStore(ledger)


@pytest.fixture
def store(ledger: Ledger) -> BatchStore:
    return BatchStore(ledger)


def upload(file_store: FileStore, file: File = FILE, *chunks: bytes) -> File:
    file_store.begin(file, **MANY)
    for number, chunk in enumerate(chunks or (b"one\n", b"two\n")):
        file_store.append(file, number, chunk, most_bytes=1000)
    return file_store.finish(replace(file, bytes=8, lines=2))


def begin(file_store: FileStore, store: BatchStore, batch: Batch = BATCH, worker: str = "w") -> Batch:
    """A batch whose lines run on a worker."""
    upload(file_store, replace(FILE, id=batch.input_file, tenant=batch.tenant))
    assert store.create(batch, Owner(batch.tenant, 1), QUOTAS) is not None
    assert store.claim(worker, 2 * T, 10 * T, most_of_tenant=9).id == batch.id
    return store.start(worker, batch.id, total=2, model="support", now=3 * T)


def answer(line: int, name: str = "", **fields: object) -> Result:
    made = record(name or f"r{line}", service_tier="batch", billable=True, **fields)
    return Result(line, False, b'{"line":%d}\n' % line, made)


def count(ledger: Ledger, table) -> int:
    with ledger.read() as connection:
        return connection.execute(select(func.count()).select_from(table)).scalar_one()


def billed(ledger: Ledger) -> list[str]:
    return sorted(r.request_id for r in ledger.usage(start=0, end=1 << 62) if r.billable)


# -- files


def test_a_file_appears_when_it_is_complete(file_store: FileStore):
    file_store.begin(FILE, **MANY)
    file_store.append(FILE, 0, b"one\n", most_bytes=100)
    assert file_store.get(ACME, "file-1") is None
    assert file_store.list(ACME, Page())[0] == []
    done = file_store.finish(replace(FILE, bytes=4, lines=1))
    assert file_store.get(ACME, "file-1") == done
    assert list(file_store.parts(done)) == [b"one\n"]


def test_only_its_owner_sees_a_file(file_store: FileStore):
    upload(file_store)
    strangers = (BOLT, Owner("acme", 2), Owner("acme", 1, "k2"))
    for stranger in strangers:
        assert file_store.get(stranger, "file-1") is None
        assert file_store.list(stranger, Page()) == ([], False)
        assert not file_store.delete(stranger, "file-1", actor="key:k", now=T)
        with pytest.raises(UnknownCursorError):
            file_store.list(stranger, Page(after="file-1"))
    assert file_store.get(Owner("acme", 1, "k1"), "file-1")


def test_quotas_count_what_is_being_uploaded(file_store: FileStore):
    file_store.begin(FILE, most_files=1)
    with pytest.raises(FlorinError, match="1 files"):
        file_store.begin(replace(FILE, id="file-2"), most_files=1)
    file_store.append(FILE, 0, b"12345", most_bytes=8)
    with pytest.raises(FlorinError, match="8 bytes"):
        file_store.append(FILE, 1, b"6789", most_bytes=8)
    file_store.begin(replace(FILE, id="file-3", tenant="bolt"), most_files=1)


def test_a_deleted_file_leaves_nothing(ledger: Ledger, file_store: FileStore):
    upload(file_store, FILE, *[b"x"] * 200)
    assert file_store.delete(ACME, "file-1", actor="key:k1", now=T)
    assert not file_store.delete(ACME, "file-1", actor="key:k1", now=T)
    assert count(ledger, files) == count(ledger, file_chunks) == 0


def test_what_has_expired_or_was_left_behind_is_swept(
    ledger: Ledger, file_store: FileStore, store: BatchStore
):
    upload(file_store)
    file_store.begin(replace(FILE, id="file-2"), **MANY)  # its worker died
    file_store.append(replace(FILE, id="file-2"), 0, b"x", most_bytes=100)
    store.create(BATCH, ACME, QUOTAS)
    assert file_store.sweep(49 * T) == 0
    assert file_store.sweep(50 * T) == 1  # not the one that a batch needs
    assert file_store.get(ACME, "file-1")
    with pytest.raises(FlorinError, match="batch_1"):
        file_store.delete(ACME, "file-1", actor="key:k1", now=T)
    store.claim("w", 2 * T, 10 * T, most_of_tenant=9)
    store.fail("w", "batch_1", [], 51 * T)
    assert file_store.sweep(51 * T) == 1
    assert count(ledger, files) == count(ledger, file_chunks) == 0
    assert store.sweep(51 * T) == 0
    assert store.sweep(52 * T) == 1
    assert count(ledger, batches) == 0


def test_an_upload_that_was_swept_does_not_come_back(file_store: FileStore):
    file_store.begin(FILE, **MANY)
    file_store.sweep(50 * T)
    with pytest.raises(FlorinError, match="too long"):
        file_store.append(FILE, 0, b"x", most_bytes=100)
    with pytest.raises(FlorinError, match="too long"):
        file_store.finish(FILE)


# -- leases


def test_a_batch_has_one_worker(file_store: FileStore, store: BatchStore):
    upload(file_store)
    store.create(BATCH, ACME, QUOTAS)
    assert store.claim("w1", 2 * T, 10 * T, most_of_tenant=9).id == "batch_1"
    assert store.claim("w2", 9 * T, 20 * T, most_of_tenant=9) is None
    assert store.renew("w1", ["batch_1"], 15 * T).keys() == {"batch_1"}
    assert store.claim("w2", 14 * T, 20 * T, most_of_tenant=9) is None
    assert store.claim("w2", 15 * T, 30 * T, most_of_tenant=9).id == "batch_1"
    assert store.renew("w1", ["batch_1"], 40 * T) == {}
    with pytest.raises(LeaseLostError):
        store.start("w1", "batch_1", total=1, model="m", now=16 * T)
    store.release("w1", ["batch_1"])
    assert store.claim("w3", 16 * T, 40 * T, most_of_tenant=9) is None
    store.release("w2", ["batch_1"])
    assert store.claim("w3", 16 * T, 40 * T, most_of_tenant=9).id == "batch_1"


def test_workers_that_stop_responding_are_counted_until_a_line_is_answered(
    file_store: FileStore, store: BatchStore
):
    begin(file_store, store)  # until 10
    store.release("w", ["batch_1"])  # in order
    assert store.claim("w1", 11 * T, 20 * T, most_of_tenant=9).lapses == 0
    assert store.claim("w2", 21 * T, 30 * T, most_of_tenant=9).lapses == 1
    store.store("w2", "batch_1", [answer(1)], 22 * T)
    assert store.claim("w1", 31 * T, 40 * T, most_of_tenant=9).lapses == 1
    lost = store.claim("w2", 41 * T, 50 * T, most_of_tenant=9)
    assert lost.lapses == 2
    why = LineError("workers_lost", "Two workers stopped.")
    ended = store.end("w2", lost, BatchStatus.FAILED, 42 * T, keep=T, errors=[why])
    assert store.get(ACME, "batch_1").document()["errors"]["data"] == [why.document()]
    assert ended.output_file  # of the line that was answered


def test_tenants_take_turns(file_store: FileStore, store: BatchStore):
    for number, tenant in enumerate(("acme", "acme", "acme", "bolt")):
        file = replace(FILE, id=f"file-{number}", tenant=tenant)
        upload(file_store, file)
        batch = replace(BATCH, id=f"batch_{number}", tenant=tenant, input_file=file.id, created_at=T + number)
        store.create(batch, Owner(tenant, 1), QUOTAS)
    order = [store.claim("w", 2 * T, 10 * T, most_of_tenant=2) for _ in range(4)]
    assert [batch and batch.id for batch in order] == ["batch_0", "batch_3", "batch_1", None]
    assert store.claim("v", 2 * T, 10 * T, most_of_tenant=2).id == "batch_2"


def test_quotas_of_batches(file_store: FileStore, store: BatchStore):
    upload(file_store)
    assert store.create(BATCH, BOLT, QUOTAS) is None
    with pytest.raises(FlorinError, match="limit of 1 together"):
        store.create(BATCH, ACME, BatchQuotas(1, 1))
    assert store.create(BATCH, ACME, BatchQuotas(1, 2)).total == 2
    with pytest.raises(FlorinError, match="1 open batches"):
        store.create(replace(BATCH, id="batch_2"), ACME, BatchQuotas(1, 100))
    with pytest.raises(FlorinError, match="2 of this tenant's are waiting"):
        store.create(replace(BATCH, id="batch_2"), ACME, BatchQuotas(2, 3))


# -- answered once, billed once: see `gateway.batches.results`


def test_results_and_their_records_are_stored_together(
    ledger: Ledger, file_store: FileStore, store: BatchStore
):
    begin(file_store, store)
    results = [answer(1), Result(2, True, b"no\n")]
    stored = store.store("w", "batch_1", results, 4 * T)
    assert stored.delivered == stored.answered == {1, 2}
    assert store.done_lines("batch_1") == {1, 2}
    assert billed(ledger) == ["r1"]
    found = store.finalize("w", "batch_1", 5 * T)
    assert (found.completed, found.failed, found.prompt_tokens) == (1, 1, results[0].record.prompt_tokens)
    ended = store.end("w", found, BatchStatus.COMPLETED, 6 * T, keep=10 * T)
    output, errors = (file_store.get(ACME, f) for f in (ended.output_file, ended.error_file))
    assert (output.lines, output.bytes, output.expires_at) == (1, len(results[0].body), 16 * T)
    assert b"".join(file_store.parts(output)) == results[0].body
    assert b"".join(file_store.parts(errors)) == b"no\n"
    assert store.claim("w2", 99 * T, 100 * T, most_of_tenant=9) is None
    file_store.delete(ACME, output.id, actor="key:k1", now=7 * T)
    assert count(ledger, batch_results) == 1
    assert b"".join(file_store.parts(errors)) == b"no\n"


def test_storing_again_after_an_unknown_outcome(ledger: Ledger, file_store: FileStore, store: BatchStore):
    begin(file_store, store)
    for _ in range(2):
        assert store.store("w", "batch_1", [answer(1)], 4 * T).delivered == {1}
    assert billed(ledger) == ["r1"]
    assert store.find("batch_1").completed == 1
    # Even if the lease was lost meanwhile.
    store.claim("w2", 11 * T, 20 * T, most_of_tenant=9)
    stored = store.store("w", "batch_1", [answer(1), answer(2)], 12 * T)
    assert (stored.delivered, stored.owned) == ({1}, False)
    assert billed(ledger) == ["r1"]


def test_the_second_of_two_workers_bills_nothing(ledger: Ledger, file_store: FileStore, store: BatchStore):
    begin(file_store, store)
    store.claim("w2", 11 * T, 20 * T, most_of_tenant=9)
    assert store.store("w2", "batch_1", [answer(1, "of w2")], 12 * T).delivered == {1}
    late = store.store("w", "batch_1", [answer(1, "of w"), answer(2, "of w too")], 13 * T)
    assert (late.delivered, late.owned) == (set(), False)
    store.claim("w", 21 * T, 30 * T, most_of_tenant=9)  # it has the batch again, and still the old answer
    late = store.store("w", "batch_1", [answer(1, "of w")], 22 * T)
    assert (late.delivered, late.answered, late.owned) == (set(), {1}, True)
    assert billed(ledger) == ["of w2"]


def test_a_worker_that_died_after_storing(ledger: Ledger, file_store: FileStore, store: BatchStore):
    """Its successor knows the attempt from the log, as one that ran."""
    begin(file_store, store)
    stored = answer(1)
    store.store("w", "batch_1", [stored], 4 * T)
    last = intent("r1", service_tier="batch")._replace(seen=stored.record.ended)
    inserted = ledger.insert([orphaned(last)])
    assert (inserted.new, inserted.duplicate, inserted.quarantined) == (0, 1, 0)
    assert count(ledger, quarantine) == 0
    assert billed(ledger) == ["r1"]
    other = ledger.insert([stored.record._replace(completion_tokens=1)])  # nothing else is let through
    assert other.quarantined == 1


def test_a_worker_that_was_taken_for_dead(ledger: Ledger, file_store: FileStore, store: BatchStore):
    begin(file_store, store)
    ledger.insert([orphaned(intent("r1", service_tier="batch"))])
    stored = store.store("w", "batch_1", [answer(1), answer(2)], 4 * T)
    assert (stored.delivered, stored.answered) == ({2}, {2})
    assert store.done_lines("batch_1") == {2}
    assert store.store("w", "batch_1", [answer(1, "again")], 5 * T).delivered == {1}
    assert billed(ledger) == ["again", "r2"]
    assert {r.outcome for r in ledger.usage(start=0, end=1 << 62) if not r.billable} == {
        Outcome.ORPHANED.value
    }


@pytest.mark.parametrize("status", [BatchStatus.COMPLETED, BatchStatus.EXPIRED, BatchStatus.CANCELLED])
def test_nothing_changes_after_the_end(
    ledger: Ledger, file_store: FileStore, store: BatchStore, status: BatchStatus
):
    batch = begin(file_store, store)
    store.store("w", "batch_1", [answer(1)], 4 * T)
    ended = store.end("w", batch, status, 6 * T, keep=10 * T)
    assert ended.status == status
    assert store.store("w", "batch_1", [answer(2)], 7 * T).delivered == set()
    assert billed(ledger) == ["r1"]
    with pytest.raises(LeaseLostError):
        store.end("w", batch, BatchStatus.COMPLETED, 8 * T, keep=10 * T)
    with pytest.raises(FlorinError, match=status.value):
        store.cancel(ACME, "batch_1", actor="key:k1", now=9 * T)


def test_cancelling(file_store: FileStore, store: BatchStore):
    begin(file_store, store)
    assert store.cancel(BOLT, "batch_1", actor="key:k2", now=4 * T) is None
    for _ in range(2):
        assert store.cancel(ACME, "batch_1", actor="key:k1", now=4 * T).status == "cancelling"
    assert store.store("w", "batch_1", [answer(1)], 5 * T).delivered == {1}  # it was on its way
    with pytest.raises(LeaseLostError):
        store.finalize("w", "batch_1", 6 * T)
    assert store.stuck(4 * T) == 0
    assert store.stuck(6 * T) == 1


def test_lists_are_read_page_by_page(file_store: FileStore, store: BatchStore):
    upload(file_store)
    for number in range(5):
        store.create(replace(BATCH, id=f"batch_{number}", created_at=T + number // 2), ACME, QUOTAS)
    seen, after, more = [], "", True
    while more:
        found, more = store.list(ACME, Page(2, after))
        seen += [batch.id for batch in found]
        after = seen[-1]
    assert seen == [f"batch_{n}" for n in (4, 3, 2, 1, 0)]
    assert [b.id for b in store.list(None, Page(2, "batch_1", ascending=True), tenant="acme")[0]] == [
        "batch_2",
        "batch_3",
    ]
    assert store.list(None, Page(), status="completed") == ([], False)

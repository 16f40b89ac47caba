import socket
import threading

import pytest
from sqlalchemy import select

from gateway.costs.closing.coverage import Coverage, record_page
from gateway.metering.ledger.database import LedgerUnavailableError
from gateway.metering.ledger.ledger import Inserted, Ledger
from gateway.metering.ledger.record_rows import engine_hour_records
from gateway.metering.ledger.schema import dirty_hours, quarantine, usage
from gateway.metering.records import UsageRecord
from gateway.units import HOUR
from tests.support.waiting import until_now
from tests.unit.gateway.metering.make import intent, record


def everything(ledger, **options):
    return ledger.usage(start=0, end=2**62, **{"limit": 10_000, **options})


def stored(made):
    """A record as the ledger gives it back: what only the log needs is not kept."""
    return {n: getattr(made, n) for n in type(made).__slots__ if n not in {"seq", "seen"}}


def test_a_record_comes_back_as_it_was(ledger):
    made = record(cached_tokens=3)
    assert ledger.insert([made]) == Inserted(new=1)
    assert [stored(r) for r in everything(ledger)] == [stored(made)]


def test_the_same_record_again_changes_nothing(ledger):
    assert ledger.insert([record("a"), record("b"), record("a")]) == Inserted(new=2, duplicate=1)
    assert ledger.insert([record("b"), record("c")]) == Inserted(new=1, duplicate=1)
    assert len(everything(ledger)) == 3


def test_the_same_id_with_other_content_goes_to_quarantine_once(ledger):
    ledger.insert([record("a")])
    changed = record("a", completion_tokens=99)
    for _ in range(2):
        assert ledger.insert([changed, record("b")]).quarantined == 1
    assert [r.completion_tokens for r in everything(ledger)] == [5, 5]
    with ledger.read() as connection:
        rows = connection.execute(select(quarantine)).all()
    assert [(r.id, '"completion_tokens":99' in r.content) for r in rows] == [(changed.id, True)]


def test_only_finals_are_taken(ledger):
    with pytest.raises(ValueError):
        ledger.insert([intent()])
    assert ledger.insert([]) == Inserted()


@pytest.mark.parametrize("newest_first", [False, True])
def test_pages_of_a_half_open_range(ledger, newest_first):
    ledger.insert([record(f"r{i}", ended=1000 + i // 2) for i in range(10)])
    assert {r.ended for r in ledger.usage(start=1001, end=1003)} == {1001, 1002}
    seen, after = [], None
    while page := ledger.usage(start=1001, end=2**62, after=after, limit=3, newest_first=newest_first):
        seen += page
        after = (page[-1].ended, page[-1].id)
    assert seen == everything(ledger)[2:][:: -1 if newest_first else 1]
    assert len(seen) == 8


def test_records_of_a_tenant_or_an_adapter_or_with_an_outcome(ledger):
    changes = {"a": {"adapter": "acme/sales"}, "b": {"outcome": "engine_error"}, "c": {"outcome": "failover"}}
    ledger.insert([record(name, **changed) for name, changed in changes.items()])
    ledger.insert([record("d", tenant="bolt")])
    assert [r.request_id for r in everything(ledger, tenant="bolt")] == ["d"]
    assert [r.request_id for r in everything(ledger, adapter="acme/sales")] == ["a"]
    assert {r.request_id for r in everything(ledger, outcomes={"engine_error", "failover"})} == {"b", "c"}
    assert everything(ledger, adapter="acme/sales", outcomes={"failover"}) == []


def test_workers_that_start_at_once_make_the_tables_once(blank_url):
    """On SQLite the others wait for three seconds, then come again, as shippers do."""
    ledgers = [Ledger(blank_url) for _ in range(8)]
    barrier = threading.Barrier(len(ledgers))
    failures = []

    def work(ledger, number):
        barrier.wait()
        until_now(lambda: inserted(ledger, number))

    def inserted(ledger, number):
        try:
            ledger.insert([record("shared"), record(f"own-{number}")])
        except LedgerUnavailableError as error:
            if "database is locked" not in str(error):
                failures.append(error)
                return True
            return False
        return True

    threads = [threading.Thread(target=work, args=(made, n)) for n, made in enumerate(ledgers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(everything(ledgers[0])) == 9
    for made in ledgers:
        made.close()


def marks(ledger):
    """{engine-hour: version}."""
    with ledger.read() as connection:
        return {tuple(row)[:4]: row.version for row in connection.execute(select(dirty_hours))}


def batches(ledger):
    with ledger.read() as connection:
        return dict(connection.execute(select(usage.c.request_id, usage.c.batch)).all())


def test_each_transaction_has_its_number(ledger):
    ledger.insert([record("a"), record("b")])
    ledger.insert([record("b"), record("c")])
    assert batches(ledger) == {"a": 1, "b": 1, "c": 2}


def test_new_records_mark_the_hours_that_they_touch(ledger):
    crossing = record("a", dispatched=100 * HOUR + 5, ended=102 * HOUR)
    back = record("b", dispatched=90 * HOUR, ended=80 * HOUR)
    rejected = record("c", engine="", gpu_type="", gpu_count=0, outcome="rejected")
    ledger.insert([crossing, back, rejected])
    pool = ("gpu-a", "H100", 1)
    touched = {*((h * HOUR, *pool) for h in (80, 100, 101, 102)), (100 * HOUR, "", "", 0)}
    first = marks(ledger)
    assert set(first) == touched
    ledger.insert([crossing, back])
    ledger.insert([rejected._replace(prompt_tokens=3)])
    assert marks(ledger) == first  # neither what was there nor what differs changes any sum
    ledger.insert([record("d", gpu_count=2), record("e")])
    second = marks(ledger)
    assert second.pop((100 * HOUR, "gpu-a", "H100", 2)) is not None
    changed = (100 * HOUR, *pool)
    assert second == {**first, changed: first[changed] + 1}


def test_a_mark_made_anew_is_not_taken_for_the_one_before(ledger):
    ledger.insert([record("a")])
    before = marks(ledger)
    with ledger.write() as connection:
        connection.execute(dirty_hours.delete())
    ledger.insert([record("b")])
    assert set(marks(ledger)) == set(before)
    assert marks(ledger) != before


def test_what_fails_leaves_neither_number_nor_mark_nor_record(ledger, monkeypatch):
    def stumble(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr("gateway.metering.ledger.ledger.mark_dirty", stumble)
    with pytest.raises(LedgerUnavailableError, match="no space left"):
        ledger.insert([record("a")])
    monkeypatch.undo()
    assert (marks(ledger), batches(ledger)) == ({}, {})
    ledger.insert([record("a")])
    assert batches(ledger) == {"a": 1}


def test_the_records_of_a_pool_hour(ledger):
    hour, pool = 100 * HOUR, ("gpu-a", "H100", 1)
    inside = {
        "within": (hour + 1, hour + 2),
        "into": (hour - 1, hour),
        "out of": (hour + HOUR - 1, hour + HOUR),
        "across": (hour - 5 * HOUR, hour + 5 * HOUR),
        "instant": (hour, hour),
    }
    outside = {"before": (hour - 2, hour - 1), "after": (hour + HOUR, hour + HOUR + 3)}
    times = {**inside, **outside}
    ledger.insert([record(name, dispatched=start, ended=end) for name, (start, end) in times.items()])
    ledger.insert(
        [record("other", dispatched=hour, engine="gpu-b"), record("two", dispatched=hour, gpu_count=2)]
    )
    with ledger.read() as connection:
        found = connection.execute(engine_hour_records((hour, *pool), usage.c.request_id)).scalars().all()
        whole = connection.execute(engine_hour_records((hour, *pool))).mappings().all()
    assert sorted(found) == sorted(inside)
    assert {r["request_id"]: UsageRecord(**r).ended for r in whole} == {n: inside[n][1] for n in inside}


@pytest.mark.parametrize("half", [0, 1])
def test_a_pool_hour_s_query_uses_an_index_for_each_half(ledger_with, half):
    """Without them a month of records would be read for every hour in it."""
    query = engine_hour_records((100 * HOUR, "gpu-a", "H100", 1), usage.c.id)
    with ledger_with().read() as connection:
        sql = str(query.compile(connection, compile_kwargs={"literal_binds": True}))
        plan = [
            row[3] for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {sql}") if "SEARCH" in row[3]
        ]
    index = (
        "usage_records_by_place (place=? AND ended>? AND ended<?)",
        "usage_records_across_hours (place=? AND ended>?)",
    )
    assert any(index[half] in step for step in plan)


def test_a_late_page_costs_no_more_than_an_early_one(ledger_with):
    """SQLite's own steps are counted: a month is read by pages, and must not be read once for each of them."""
    ledger = ledger_with()
    ledger.insert([record(f"r{i}", ended=1000 + i) for i in range(4000)])
    steps = []
    with ledger.read() as connection:
        connection.connection.driver_connection.set_progress_handler(lambda: steps.append(1) or 0, 100)

    def cost(page, after):
        steps.clear()
        assert len(page(after)) == 20
        return len(steps)

    last = ledger.usage(start=4900, end=4901)[0]
    cover = Coverage("1970-01", -1, 10)
    for page in (
        lambda after: ledger.usage(start=0, end=2**62, after=after, limit=20),
        lambda after: ledger.usage(start=0, end=2**62, after=after, limit=20, tenant="acme"),
        lambda after: record_page(ledger, cover, tenant=None, after=after, limit=20),
        lambda after: record_page(ledger, cover, tenant="acme", after=after, limit=20),
    ):
        assert cost(page, (last.ended, last.id)) <= cost(page, None) + 10


def test_a_database_that_is_away_says_so_in_one_line():
    with socket.socket() as bound:  # and not listening
        bound.bind(("127.0.0.1", 0))
        ledger = Ledger(f"postgresql+psycopg://u:secret@127.0.0.1:{bound.getsockname()[1]}/x")
        with pytest.raises(LedgerUnavailableError) as caught, ledger.read():
            pass
    said = str(caught.value)
    assert said.isprintable(), said
    assert "failed:" in said
    assert "secret" not in said + repr(ledger)

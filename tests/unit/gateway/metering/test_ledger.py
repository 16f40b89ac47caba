import threading

import pytest
from sqlalchemy import select

from gateway.metering.ledger import Inserted, Ledger, LedgerUnavailableError, quarantine
from tests.unit.gateway.metering.make import intent, record


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path / 'deep' / 'ledger.db'}"


@pytest.fixture
def ledger(url):
    made = Ledger(url)
    yield made
    made.close()


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


def test_pages_of_a_half_open_range(ledger):
    ledger.insert([record(f"r{i}", ended=1000 + i // 2) for i in range(10)])
    assert {r.ended for r in ledger.usage(start=1001, end=1003)} == {1001, 1002}
    seen, after = [], None
    while page := ledger.usage(start=0, end=2**62, after=after, limit=3):
        seen += page
        after = (page[-1].ended, page[-1].id)
    assert seen == everything(ledger)
    assert len(seen) == 10


def test_a_tenant_s_records_alone(ledger):
    ledger.insert([record("a"), record("b", tenant="bolt")])
    assert [r.tenant for r in everything(ledger, tenant="bolt")] == ["bolt"]


def test_workers_that_start_at_once_make_the_tables_once(url):
    ledgers = [Ledger(url) for _ in range(8)]
    barrier = threading.Barrier(len(ledgers))
    failures = []

    def work(ledger, number):
        barrier.wait()
        try:
            ledger.insert([record("shared"), record(f"own-{number}")])
        except LedgerUnavailableError as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(made, n)) for n, made in enumerate(ledgers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(everything(ledgers[0])) == 9
    for made in ledgers:
        made.close()


def test_a_database_that_is_away_is_said_to_be_so(tmp_path):
    (tmp_path / "file").write_text("")
    away = Ledger(f"sqlite:///{tmp_path / 'file' / 'ledger.db'}")
    with pytest.raises(LedgerUnavailableError):
        away.insert([record()])
    away.close()


def test_no_password_is_shown():
    assert "secret" not in repr(Ledger("postgresql+psycopg://u:secret@localhost/florin"))

"""What a database may do to a ledger, and what then must not have happened."""

import sqlite3
import threading

import pytest
from sqlalchemy import func, select, text

from gateway.metering.ledger import database
from gateway.metering.ledger.database import LedgerUnavailableError
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import dirty_hours, ledger_state, usage_records
from tests.unit.gateway.metering.make import record


@pytest.fixture
def sqlite_path(tmp_path):
    return tmp_path / "ledger.db"


@pytest.fixture
def sqlite_ledger(sqlite_path, monkeypatch):
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.1)
    made = Ledger(f"sqlite:///{sqlite_path}")
    made.insert([record("before")])
    yield made
    made.close()


@pytest.fixture
def postgresql_url(postgres, postgres_template):
    with postgres.database(postgres_template) as url:
        yield url


def test_text_is_text_in_a_postgresql_database_without_an_encoding(postgres):
    with postgres.database("template0 ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C'") as url:
        made = Ledger(url)
        made.insert([record("naïve")])
        (found,) = made.usage(start=0, end=1 << 62, limit=10)
        made.close()
    assert found.tenant == "acme"


@pytest.fixture
def postgresql_ledger(postgresql_url):
    made = Ledger(postgresql_url)
    made.insert([record("before")])
    yield made
    made.close()


def state(ledger):
    """Records, marks, and the last batch."""
    with ledger.read() as connection:
        records = connection.execute(select(func.count()).select_from(usage_records)).scalar()
        marks = connection.execute(select(dirty_hours)).all()
        batch = connection.execute(select(ledger_state.c.value)).scalars().all()
    return records, marks, batch


def test_sqlite_that_another_writes_to(sqlite_ledger, sqlite_path):
    before = state(sqlite_ledger)
    other = sqlite3.connect(sqlite_path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    assert state(sqlite_ledger) == before  # readers are not stopped
    with pytest.raises(LedgerUnavailableError, match="locked"):
        sqlite_ledger.insert([record("a")])
    newcomer = Ledger(f"sqlite:///{sqlite_path}")
    assert state(newcomer) == before  # nor is who opens it only now
    newcomer.close()
    other.execute("ROLLBACK")
    other.close()
    assert sqlite_ledger.insert([record("a")]).new == 1


def test_sqlite_on_a_full_disk(sqlite_ledger):
    def may_grow_to(pages):
        with sqlite_ledger.read() as connection:
            return connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}").scalar()

    limit = may_grow_to(1)  # not below what it has
    before = state(sqlite_ledger)
    many = [record(f"r{i}", tenant="t" * 500) for i in range(200)]
    with pytest.raises(LedgerUnavailableError, match="full"):
        sqlite_ledger.insert(many)
    assert state(sqlite_ledger) == before
    may_grow_to(limit + 10_000)
    assert sqlite_ledger.insert(many).new == 200


def test_sqlite_waits_for_the_disk_at_each_commit(sqlite_ledger):
    with sqlite_ledger.read() as connection:
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"


def test_postgresql_on_a_full_disk(postgresql_ledger):
    """Its error, from the server itself, at the last step of an insert."""
    before = state(postgresql_ledger)
    with postgresql_ledger.write() as connection:
        connection.execute(
            text(
                "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION "
                "'could not extend file: No space left on device' USING ERRCODE = '53100'; END $$"
            )
        )
        connection.execute(text("CREATE TRIGGER t BEFORE UPDATE ON dirty_hours EXECUTE FUNCTION full_disk()"))
    with pytest.raises(LedgerUnavailableError, match="No space left"):
        postgresql_ledger.insert([record("a")])
    assert state(postgresql_ledger) == before
    with postgresql_ledger.write() as connection:
        connection.execute(text("DROP TRIGGER t ON dirty_hours"))
    assert postgresql_ledger.insert([record("a")]).new == 1


def test_postgresql_that_is_not_there(postgresql_url):
    away = Ledger(postgresql_url.rsplit("/", 1)[0] + "/nothing")
    for _ in range(2):
        with pytest.raises(LedgerUnavailableError, match="does not exist"):
            away.insert([record()])
    away.close()


def test_a_reader_sees_one_state_to_the_end(ledger):
    ledger.insert([record("a")])
    query = select(func.count()).select_from(usage_records)
    with ledger.read() as connection:
        before = connection.execute(query).scalar()
        writer = threading.Thread(target=ledger.insert, args=([record("b")],))
        writer.start()
        writer.join()
        assert connection.execute(query).scalar() == before
    with ledger.read() as connection:
        assert connection.execute(query).scalar() == before + 1


def test_postgresql_keeps_no_prepared_statements(postgresql_ledger):
    """Behind PgBouncer in transaction mode, the next transaction may be on another server's connection."""
    with postgresql_ledger.read() as connection:
        for _ in range(10):
            connection.execute(select(func.count()).select_from(usage_records))
        assert connection.execute(text("SELECT count(*) FROM pg_prepared_statements")).scalar() == 0

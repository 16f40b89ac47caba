"""A database that goes from test to test is as good as a new one."""

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError

from gateway.metering.ledger.ledger import Ledger
from tests.support.empty_ledgers import EmptyLedgers
from tests.unit.gateway.metering.make import record


@pytest.fixture
def lent(postgres, postgres_template):
    made = EmptyLedgers(postgres, postgres_template)
    yield made
    made.close()


def test_the_next_one_finds_no_rows(lent):
    with lent.lend() as first:
        ledger = Ledger(first)
        assert ledger.insert([record("r")]).new == 1
        ledger.close()
    with lent.lend() as second:
        ledger = Ledger(second)
        assert ledger.usage(start=0, end=2**62) == []
        assert ledger.insert([record("r")]).new == 1
        ledger.close()
    assert second == first


def test_the_audit_log_is_emptied_and_still_refuses(lent):
    audit = text(
        "INSERT INTO audit_log (id, digest, at, seq, actor, action, subject, version, details)"
        " VALUES ('1-0', 'd', 1, 0, 'a', 'x', 's', '', '{}')"
    )
    for _ in range(2):
        with lent.lend() as url:
            engine = create_engine(url)
            with engine.begin() as connection:
                assert connection.execute(text("SELECT count(*) FROM audit_log")).scalar() == 0
                connection.execute(audit)
            with pytest.raises(DBAPIError, match="append-only"), engine.begin() as connection:
                connection.execute(text("TRUNCATE audit_log"))
            engine.dispose()


def test_a_transaction_that_was_left_open_holds_nobody_up(lent):
    with lent.lend() as url:
        engine = create_engine(url)
        left = engine.connect()
        left.execute(text("LOCK TABLE usage_records"))
    with lent.lend() as again:
        assert again == url
    left.invalidate()
    left.close()
    engine.dispose()


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE snapshots ADD COLUMN more integer",
        "ALTER TABLE prices ALTER COLUMN region DROP NOT NULL",
        "DROP TABLE quarantine",
        "ALTER TABLE audit_log DISABLE TRIGGER ALL",
        "CREATE TABLE more (n integer)",
        "CREATE INDEX more ON usage_records (tenant, place)",
        "UPDATE alembic_version SET version_num = '9999'",
        "DELETE FROM alembic_version",
    ],
)
def test_one_that_was_changed_is_lent_to_nobody(lent, change):
    with lent.lend() as url:
        engine = create_engine(url)
        with engine.begin() as connection:
            connection.execute(text(change))
        engine.dispose()
    with lent.lend() as other:
        assert other != url

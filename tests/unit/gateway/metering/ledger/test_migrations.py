import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, insert, inspect, select, text

from gateway.metering.ledger import migrations
from gateway.metering.ledger.database import LedgerTooNewError, LedgerUnavailableError
from gateway.metering.ledger.ledger import Inserted, Ledger
from gateway.metering.ledger.quarantine import quarantined
from gateway.metering.ledger.schema import dirty_hours, periods, prices, schema, usage_records
from tests.unit.gateway.costs.rolled import row, write
from tests.unit.gateway.metering.ledger import version_0_1
from tests.unit.gateway.metering.make import HOUR, record


def old_row(made):
    return {c.name: getattr(made, c.name) for c in version_0_1.usage_records.columns}


@pytest.fixture
def old_url(blank_url):
    """A database of version 0.1.0 with something in each table."""
    rows = [
        record("a"),
        record("b", dispatched=100 * HOUR + 5, ended=103 * HOUR + 5, engine="gpu-b", gpu_count=2),
        record("c", dispatched=99 * HOUR, ended=99 * HOUR - 7),  # the clock was set back
        record("d", dispatched=100 * HOUR - 5, ended=100 * HOUR),
        record("e", engine="", gpu_type="", gpu_count=0, outcome="rejected"),
    ]
    engine = create_engine(blank_url)
    with engine.begin() as connection:
        version_0_1.schema.create_all(connection)
        connection.execute(version_0_1.usage_records.insert(), [old_row(made) for made in rows])
        connection.execute(
            version_0_1.quarantine.insert(), {"id": "x", "digest": "d", "content": "{}", "recorded_at": 7}
        )
        connection.execute(
            version_0_1.prices.insert(),
            {
                "gpu_type": "H100",
                "region": "",
                "purchase": "on_demand",
                "rate_micros": 5,
                "currency": "EUR",
                "valid_from": 0,
                "recorded_at": 1,
            },
        )
    engine.dispose()
    return blank_url


def opened(url):
    ledger = Ledger(url)
    with ledger.read():
        pass
    return ledger


def differences(ledger):
    with ledger.read() as connection:
        options = {"compare_type": True, "compare_server_default": True}
        context = MigrationContext.configure(connection, opts=options)
        return compare_metadata(context, schema)


def test_migrations_make_what_the_schema_says(ledger):
    assert differences(ledger) == []


def test_a_difference_would_be_seen(ledger):
    with ledger.write() as connection:
        connection.execute(text("ALTER TABLE snapshots ADD COLUMN more INTEGER"))
    assert len(differences(ledger)) == 1


def test_the_last_revision_is_the_head():
    scripts = ScriptDirectory(str(Path(migrations.__file__).parent))
    known = [script.revision for script in scripts.walk_revisions()]
    assert tuple(reversed(known)) == migrations.REVISIONS


def test_a_ledger_of_0_1_0_is_taken_over_whole(old_url):
    ledger = opened(old_url)
    kept = ledger.usage(start=0, end=2**62)
    assert {r.request_id for r in kept} == {"a", "b", "c", "d", "e"}
    assert all(r.adapter_loads == 0 and r.hour_marks is None for r in kept)
    assert [(q.id, q.reason, q.record) for q in quarantined(ledger)] == [("x", "differs", {})]
    with ledger.read() as connection:
        assert connection.execute(select(prices.c.rate_micros, prices.c.speedup_millis)).all() == [(5, None)]
        assert connection.execute(select(usage_records.c.batch).distinct()).scalars().all() == [0]
        marks = connection.execute(select(*list(dirty_hours.c)[:4])).all()
    assert sorted((h // HOUR, *pool) for h, *pool in marks) == [
        (98, "gpu-a", "H100", 1),
        (99, "gpu-a", "H100", 1),
        (100, "", "", 0),
        (100, "gpu-a", "H100", 1),
        *((h, "gpu-b", "H100", 2) for h in (100, 101, 102, 103)),
    ]
    assert differences(ledger) == []
    # ... and goes on: what it knew is known, what is new is new, and a mark counts up.
    assert ledger.insert([record("a"), record("f")]) == Inserted(new=1, duplicate=1)
    ledger.close()


def test_hours_with_sums_that_cannot_be_are_looked_at_again(blank_url, monkeypatch):
    """What an earlier version rolled up although nobody can have used it, where it still can change."""
    with monkeypatch.context() as patched:
        patched.setattr(migrations, "HEAD", "0004")
        patched.setattr(migrations, "_describe", lambda _: None)  # it tells of later tables too
        earlier = opened(blank_url)
        month = {"state": "closed", "first_batch": 0, "cutoff_batch": 0, "closing_at": 0, "closed_by": "k"}
        with earlier.write() as connection:
            connection.execute(insert(periods), {**month, "month": "1970-01", "policy": "none"})
        absurd = {"prompt_tokens": 5 * 10**18}
        write(earlier, row(1000), row(1001, **absurd), row(100, **absurd))
        write(earlier, row(1002, engine="b", **absurd), row(1002, engine="b", tenant="bolt", **absurd))
        earlier.close()
    ledger = opened(blank_url)
    with ledger.read() as connection:
        marks = connection.execute(select(dirty_hours.c.hour, dirty_hours.c.engine)).all()
    assert sorted((hour // HOUR, engine) for hour, engine in marks) == [(1001, "gpu-a"), (1002, "b")]
    ledger.close()


def test_what_was_shipped_before_is_the_same_record_afterwards(old_url):
    ledger = opened(old_url)
    assert ledger.insert(ledger.usage(start=0, end=2**62)).duplicate == 5
    ledger.close()


def test_workers_that_start_at_once_migrate_once(old_url):
    ledgers = [Ledger(old_url) for _ in range(6)]
    barrier = threading.Barrier(len(ledgers))
    failures = []

    def work(ledger, number):
        barrier.wait()
        try:
            ledger.insert([record(f"own-{number}")])
        except LedgerUnavailableError as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=item[::-1]) for item in enumerate(ledgers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(ledgers[0].usage(start=0, end=2**62)) == 5 + len(ledgers)
    for ledger in ledgers:
        ledger.close()


def test_a_later_florin_s_database_is_refused_in_a_sentence(ledger_url):
    ledger = opened(ledger_url)
    with ledger.write() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    ledger.close()
    newer = Ledger(ledger_url)
    for _ in range(2):  # not only the first time
        with pytest.raises(
            LedgerTooNewError, match=r"made by a later Florin \(its schema is 9999, this one's"
        ):
            newer.insert([record()])
    newer.close()


def test_a_migration_that_fails_leaves_the_old_ledger(old_url, monkeypatch):
    def stumble(connection):
        raise OSError("the disk is full")

    monkeypatch.setattr(migrations, "_describe", stumble)
    ledger = Ledger(old_url)
    with pytest.raises(LedgerUnavailableError, match="the disk is full"):
        ledger.insert([record("f")])
    engine = create_engine(old_url)
    assert set(inspect(engine).get_table_names()) == {"usage_records", "quarantine", "prices"}
    engine.dispose()
    monkeypatch.undo()
    assert ledger.insert([record("f")]).new == 1
    ledger.close()


def test_logging_is_left_as_it_was(blank_url):
    handlers, level = list(logging.root.handlers), logging.root.level
    ours = logging.getLogger("florin.metering")
    opened(blank_url).close()
    assert (logging.root.handlers, logging.root.level, ours.disabled) == (handlers, level, False)


def test_a_directory_with_a_percent_sign(tmp_path):
    opened(f"sqlite:///{tmp_path / '100%(x)s' / 'ledger.db'}").close()
    assert Config().get_main_option("script_location") is None  # nothing is read from the working directory


def test_postgresql_is_told_what_its_columns_mean(postgres, postgres_template):
    with postgres.database(postgres_template) as url:
        engine = create_engine(url)
        described = inspect(engine)
        assert described.get_table_comment("usage_records")["text"].startswith("one row an attempt")
        columns = {c["name"]: c["comment"] for c in described.get_columns("usage_records")}
        engine.dispose()
    assert columns["batch"].startswith("number of the transaction")


def test_several_databases_at_once_in_one_process(tmp_path):
    """As gateways of tests do: alembic itself knows no threads."""
    engines = [create_engine(f"sqlite:///{tmp_path}/{n}.db") for n in range(8)]
    with ThreadPoolExecutor(len(engines)) as pool:
        list(pool.map(migrations.migrate, engines))
    for engine in engines:
        with engine.connect() as connection:
            assert (
                connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
                == migrations.HEAD
            )
        engine.dispose()

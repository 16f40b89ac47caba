import logging
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, inspect, text

from gateway.metering.ledger import migrations
from gateway.metering.ledger.database import LedgerUnavailableError, UnknownSchemaError
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.migrations import __main__ as first_step
from gateway.metering.ledger.schema import schema
from tests.unit.gateway.metering.make import record


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


def test_a_newer_version_s_database_is_refused_in_a_sentence(ledger_url):
    ledger = opened(ledger_url)
    with ledger.write() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
        connection.execute(text("DELETE FROM ledger_state"))  # which says who may write
    ledger.close()
    newer = Ledger(ledger_url)
    for _ in range(2):  # not only the first time
        with pytest.raises(
            UnknownSchemaError, match=r"newer version of Florin \(its schema is 9999; this version requires"
        ):
            newer.insert([record()])
    newer.close()


def test_a_migration_that_fails_leaves_the_database_as_it_was(blank_url, monkeypatch):
    def fail(connection):
        raise OSError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(migrations, "_leave_writable", fail)
        ledger = Ledger(blank_url)
        with pytest.raises(LedgerUnavailableError, match="the disk is full"):
            ledger.insert([record("f")])
    engine = create_engine(blank_url)
    assert inspect(engine).get_table_names() == []
    engine.dispose()
    assert ledger.insert([record("f")]).new == 1
    ledger.close()


def upgraded_by_a_later_version(ledger, monkeypatch, since):
    def upgrade(connection, revision):
        connection.execute(text(f"UPDATE alembic_version SET version_num = '{revision}'"))
        migrations._leave_writable(connection)

    with ledger.read():
        pass
    with monkeypatch.context() as later:
        later.setattr(migrations, "REVISIONS", (*migrations.REVISIONS, "9999"))
        later.setattr(migrations, "HEAD", "9999")
        later.setattr(migrations, "WRITABLE_SINCE", since)
        later.setattr(migrations, "upgrade", upgrade)
        migrations.migrate(ledger._engine)
    ledger.close()


@pytest.mark.both_databases
def test_an_upgrade_is_logged_and_gateways_that_it_leaves_writing_start(ledger, monkeypatch, caplog):
    before = migrations.HEAD
    with caplog.at_level(logging.INFO, "florin.metering"):
        upgraded_by_a_later_version(ledger, monkeypatch, before)
    assert caplog.messages == [
        f"Ledger: upgrading its schema from {before} to 9999, once nobody reads it.",
        f"Ledger: schema upgraded from {before} to 9999.",
    ]
    assert ledger.insert([record()]).new == 1
    assert f"newer version of Florin, and can be used by this one ({before})" in caplog.text


def test_a_ledger_says_from_its_start_which_versions_may_write(blank_url):
    ledger = opened(blank_url)
    with ledger.read() as connection:
        assert migrations._writable(connection)
    ledger.close()


def test_gateways_that_a_later_version_does_not_leave_writing_are_refused(ledger, monkeypatch):
    upgraded_by_a_later_version(ledger, monkeypatch, "9999")
    with pytest.raises(UnknownSchemaError):
        ledger.insert([record()])


def shape(connection):
    """Table → its columns, and whether an insert must name them."""
    tables = inspect(connection)
    return {
        table: {
            column["name"]: not column["nullable"] and column["default"] is None
            for column in tables.get_columns(table)
        }
        for table in tables.get_table_names()
    }


@pytest.mark.both_databases
def test_gateways_of_the_oldest_version_that_may_write_know_all_that_they_must(blank_url):
    engine = create_engine(blank_url)
    with engine.begin() as connection:
        migrations.upgrade(connection, migrations.WRITABLE_SINCE)
        before = shape(connection)
        migrations.upgrade(connection, migrations.HEAD)
        after = shape(connection)
    engine.dispose()
    for table, columns in before.items():
        new = after[table].keys() - columns.keys()
        assert columns.keys() <= after[table].keys(), f"{table} lost columns"
        assert {name for name in new if after[table][name]} == set()
        required = {name for name in columns if after[table][name] and not columns[name]}
        assert required == set(), f"{table}: inserts could leave these out"


def test_a_ledger_from_before_the_first_release_is_left_as_it_is(ledger):
    with ledger.write() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '0024'"))
    ledger.close()
    with pytest.raises(
        UnknownSchemaError, match=r"from before the first release of Florin \(its schema is 0024"
    ):
        ledger.insert([record()])


@pytest.mark.parametrize(("version", "status"), [(migrations.HEAD, 0), ("9999", 1), (None, 0)])
def test_a_pod_begins_unless_it_could_never_write(ledger_url, monkeypatch, version, status):
    if version:
        ledger = opened(ledger_url)
        with ledger.write() as connection:
            connection.execute(text(f"UPDATE alembic_version SET version_num = '{version}'"))
            connection.execute(text("DELETE FROM ledger_state"))
        ledger.close()
    monkeypatch.setattr(first_step, "log_to_stderr", lambda: None)
    monkeypatch.setenv("FLORIN_LEDGER_URL", ledger_url if version else "sqlite:////proc/none/ledger.db")
    assert first_step.main() == status


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
        assert described.get_table_comment("usage_records")["text"].startswith("one row per attempt")
        columns = {c["name"]: c["comment"] for c in described.get_columns("usage_records")}
        engine.dispose()
    assert columns["batch"].startswith("number of the inserting transaction")

"""Which ledger it is: what shares one, and what does not."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from gateway.metering.ledger import dump
from gateway.metering.ledger.database import open_engine
from gateway.metering.ledger.identity import identity
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.migrations import HEAD


@pytest.mark.both_databases
def test_all_who_share_it_name_it_alike_from_the_first_time_on(ledger_url: str):
    ledgers = [Ledger(ledger_url) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        names = set(pool.map(identity, ledgers))
    for ledger in ledgers:
        ledger.close()
    assert len(names) == 1
    assert names != {""}


def test_another_ledger_and_a_copied_file_are_others_and_a_renamed_one_is_not(tmp_path: Path):
    with (
        closing(Ledger(f"sqlite:///{tmp_path / 'a.db'}")) as a,
        closing(Ledger(f"sqlite:///{tmp_path / 'b.db'}")) as b,
    ):
        names = [identity(a), identity(b)]
    with (
        closing(sqlite3.connect(tmp_path / "a.db")) as file,
        closing(sqlite3.connect(tmp_path / "copy.db")) as copy,
    ):
        file.backup(copy)
    (tmp_path / "a.db").rename(tmp_path / "moved.db")
    for name in ("copy", "moved"):
        with closing(Ledger(f"sqlite:///{tmp_path / name}.db")) as ledger:
            names.append(identity(ledger))
    assert len(set(names)) == 3
    assert names[3] == names[0]


@pytest.mark.both_databases
def test_a_restored_backup_is_a_ledger_of_its_own(ledger: Ledger, tmp_path: Path):
    first = identity(ledger)
    with ledger.read() as connection:
        tables = dump.tables(connection)
        assert dump.is_empty(connection), "that it has a name is no content"
        lines = {table.name: list(dump.lines(connection, table)) for table in tables}
    columns = {table.name: [column.name for column in table.columns] for table in tables}
    url = f"sqlite:///{tmp_path / 'restored.db'}"
    with closing(Ledger(url)) as restored:
        second = identity(restored)  # a gateway had been started on it
        dump.restore(open_engine(restored._url), HEAD, columns, lines.__getitem__, lambda _: None)
        assert identity(restored) == second != first


def test_a_ledger_that_cannot_be_asked_has_no_name(tmp_path: Path):
    (tmp_path / "taken").touch()
    with closing(Ledger(f"sqlite:///{tmp_path / 'taken' / 'ledger.db'}")) as ledger:
        assert identity(ledger) == ""

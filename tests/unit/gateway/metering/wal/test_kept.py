"""The ledger's database loses commits that it had acknowledged, as a replica does that was behind."""

import os
import time

import pytest
from sqlalchemy import delete, func, select, update

from gateway.costs.rollups.set_aside import _remove
from gateway.metering.ledger.database import LedgerUnavailableError
from gateway.metering.ledger.schema import dirty_hours, ledger_state, usage, usage_records
from gateway.metering.records import record_id
from gateway.metering.wal import shipper as module
from gateway.metering.wal.kept import KeptLog
from gateway.metering.wal.segments import Cursor, WorkerDirectory
from gateway.metering.wal.shipper import Shipper
from gateway.observability.metrics import Metrics
from tests.support.waiting import PATIENCE_S
from tests.unit.gateway.metering.make import LogStub, intent, record


@pytest.fixture(autouse=True)
def _checks_each_time(monkeypatch):
    monkeypatch.setattr(module, "_CHECK_SECONDS", 0)


@pytest.fixture
def ledger(ledger_with):
    return ledger_with()


@pytest.fixture
def root(tmp_path):
    return tmp_path / "usage"


class Worker:
    """Its log and its shipper, without threads."""

    def __init__(self, root, ledger, name, *, seconds=1800):
        self.metrics = Metrics()
        self.directory = WorkerDirectory.create(root, name)
        self.shipper = Shipper(
            root, self.directory, LogStub(), ledger, self.metrics, kept=KeptLog(root, seconds)
        )

    def log(self, segment, *lines):
        with self.directory.segment(segment).open("ab") as file:
            file.writelines(lines)
        return self

    def ship(self):
        assert self.shipper.flush_now(PATIENCE_S)

    def stop(self):
        self.shipper._stop.set()
        self.shipper.start()
        self.shipper.close()

    def recovered(self):
        found = self.metrics.registry.get_sample_value("florin_usage_records_total", {"result": "recovered"})
        return found or 0


def batch(ledger):
    with ledger.read() as connection:
        return (
            connection.execute(select(ledger_state.c.value).where(ledger_state.c.name == "batch")).scalar()
            or 0
        )


def lose(ledger, since):
    """All batches after that one."""
    with ledger.write() as connection:
        connection.execute(delete(usage_records).where(usage_records.c.batch > since))
        connection.execute(delete(dirty_hours))
        connection.execute(update(ledger_state).where(ledger_state.c.name == "batch").values(value=since))


def ids(ledger):
    with ledger.read() as connection:
        found = list(connection.execute(select(usage.c.request_id)).scalars())
    assert len(found) == len(set(found))
    return set(found)


def test_what_was_lost_is_shipped_again(root, ledger):
    worker = Worker(root, ledger, "w").log(1, record("a").line()).log(2, intent("b").line())
    worker.ship()
    kept = batch(ledger)
    worker.log(2, record("b").line()).log(3, record("c").line())
    worker.ship()
    assert worker.directory.segments() == [3]
    lose(ledger, kept)
    worker.ship()
    assert ids(ledger) == {"a", "b", "c"}
    assert worker.recovered() == 2
    with ledger.read() as connection:  # for the reports
        assert connection.execute(select(func.count()).select_from(dirty_hours)).scalar() == 1
    before = batch(ledger)
    worker.ship()
    assert batch(ledger) == before  # once


def test_a_loss_is_noticed_though_others_have_written_more_since(root, ledger):
    worker = Worker(root, ledger, "w").log(1, record("a").line())
    worker.ship()
    worker.log(1, record("b").line())
    worker.ship()
    lose(ledger, 1)
    for number in range(5):
        ledger.insert([record(f"other-{number}")])
    worker.log(1, record("c").line())
    worker.ship()
    assert ids(ledger) >= {"a", "b", "c"}


def test_each_commit_between_two_checks_counts(root, ledger, monkeypatch):
    """Of three, the first was replicated, the second was lost, and the third is on the new primary."""
    monkeypatch.setattr(module, "_CHECK_SECONDS", 3600)
    worker = Worker(root, ledger, "w").log(1, record("a").line())
    worker.ship()
    worker.log(1, record("b").line())
    worker.ship()
    lose(ledger, 1)
    worker.log(1, record("c").line())
    worker.ship()
    monkeypatch.setattr(module, "_CHECK_SECONDS", 0)
    worker.ship()
    assert ids(ledger) == {"a", "b", "c"}


def test_after_so_many_commits_it_does_not_wait(root, ledger, monkeypatch):
    monkeypatch.setattr(module, "_CHECK_SECONDS", 3600)
    monkeypatch.setattr(module, "_MARKS", 3)
    worker = Worker(root, ledger, "w").log(1, record("a").line())
    worker.ship()
    lose(ledger, 0)
    worker.log(1, record("b").line())
    worker.ship()
    worker.log(1, record("c").line())
    worker.ship()
    assert ids(ledger) == {"a", "b", "c"}


def test_a_commit_whose_answer_was_lost_is_held_for_acknowledged_by_its_repetition(root, ledger):
    """Then all are duplicates; they are of an earlier batch than the one of the repetition."""
    worker = Worker(root, ledger, "w").log(1, record("a").line())
    ledger.insert([record("old")])
    ledger.insert([record("a")])
    worker.ship()
    lose(ledger, 1)
    worker.ship()
    assert ids(ledger) == {"old", "a"}


@pytest.mark.parametrize("stopped", [True, False])
def test_a_successor_ships_again_what_was_acknowledged_to_a_worker_that_is_gone(root, ledger, stopped):
    gone = Worker(root, ledger, "gone").log(1, record("a").line(), intent("open").line())
    gone.ship()
    gone.log(1, record("b").line())
    gone.ship()
    gone.stop() if stopped else gone.directory.release()
    if stopped:
        lose(ledger, 1)
    first = Worker(root, ledger, "first")
    first.ship()
    assert ids(ledger) == {"a", "b", "open"}
    if not stopped:  # its open attempt was closed by the first, which dies, too
        first.directory.release()
        lose(ledger, 1)
        second = Worker(root, ledger, "second")
        second.ship()
        assert ids(ledger) == {"a", "b", "open"}


def test_a_loss_that_is_noticed_while_a_log_is_adopted(root, ledger, monkeypatch):
    monkeypatch.setattr(module, "_MARKS", 3)
    monkeypatch.setattr(module, "_ROWS", 2)
    dead = Worker(root, ledger, "dead").log(1, record("a").line(), record("b").line())
    dead.ship()
    lose(ledger, 0)
    for segment in (1, 2, 3, 4):
        dead.log(segment, *(record(f"{segment}-{n}").line() for n in range(5)))
    dead.directory.release()
    Worker(root, ledger, "heir").ship()
    assert ids(ledger) == {"a", "b", *(f"{segment}-{n}" for segment in (1, 2, 3, 4) for n in range(5))}


def test_a_gateway_that_was_away_for_long_still_has_what_an_older_backup_lacks(root, ledger):
    worker = Worker(root, ledger, "w").log(1, record("a").line())
    worker.ship()
    worker.stop()
    for file in (root / ".kept").iterdir():
        os.utime(file, (0, 0))
    lose(ledger, 0)
    later = Worker(root, ledger, "later")
    later.ship()
    assert ids(ledger) == {"a"}
    assert list((root / ".kept").iterdir()) == []


def test_a_repair_that_breaks_off_is_begun_again(root, ledger, monkeypatch):
    worker = Worker(root, ledger, "w").log(1, *(record(f"r{n}").line() for n in range(40)))
    worker.ship()
    lose(ledger, 0)

    def away(*_):
        raise LedgerUnavailableError("away")

    with monkeypatch.context() as patched:
        patched.setattr(ledger, "insert", away)
        with pytest.raises(LedgerUnavailableError):
            worker.ship()
    worker.directory.release()  # and the worker dies
    Worker(root, ledger, "heir").ship()
    assert len(ids(ledger)) == 40


def test_what_an_operator_has_excluded_stays_away(root, ledger):
    worker = Worker(root, ledger, "w").log(1, record("a").line(), record("b").line())
    worker.ship()
    with ledger.write() as connection:
        rows = connection.execute(select(usage)).mappings().all()
        _remove(connection, [row for row in rows if row["id"] == max(record_id(r, 1) for r in "ab")])
    (left,) = ids(ledger)
    worker.ship()
    assert worker.recovered() == 0
    worker.log(1, record("c").line())
    worker.ship()
    lose(ledger, 0)
    worker.ship()
    assert ids(ledger) == {left, "c"}


def test_kept_files_expire(root, ledger):
    worker = Worker(root, ledger, "w").log(1, record("a").line()).log(2, record("b").line())
    worker.ship()
    kept = root / ".kept"
    (file,) = kept.iterdir()
    assert kept.stat().st_mode & 0o077 == 0
    long_ago = time.time() - 1801
    os.utime(file, (long_ago, long_ago))
    worker.ship()
    assert list(kept.iterdir()) == []
    worker.directory.release()


def test_kept_files_leave_the_disk_as_much_as_they_take(root, ledger, monkeypatch):
    worker = Worker(root, ledger, "w")
    for segment in (1, 2, 3):
        worker.log(segment, *(record(f"{segment}-{n}").line() for n in range(10)))
    worker.ship()
    size = max(file.stat().st_size for file in (root / ".kept").iterdir())
    free = iter([size // 2])
    monkeypatch.setattr(
        "gateway.metering.wal.kept.shutil.disk_usage", lambda _: type("", (), {"free": next(free)})
    )
    worker.ship()
    assert [file.name for file in (root / ".kept").iterdir()] == ["w-00000002.jsonl"]
    worker.directory.release()


def test_a_full_disk_gets_the_room_of_what_is_kept(root, ledger, monkeypatch):
    worker = Worker(root, ledger, "w").log(1, record("a").line()).log(2, record("b").line())
    worker.ship()
    worker.log(3, record("c").line())

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(WorkerDirectory, "save_cursor", full)
        with pytest.raises(OSError, match="No space"):
            worker.ship()
    assert list((root / ".kept").iterdir()) == []
    assert worker.directory.segments() == [3]
    worker.ship()
    assert ids(ledger) == {"a", "b", "c"}
    worker.directory.release()


def test_a_position_of_an_earlier_florin_is_read(root):
    directory = WorkerDirectory.create(root, "w")
    (directory.path / "shipped").write_text("3 1200")
    assert (directory.cursor(), directory.marks()) == (Cursor(3, 1200), [])
    (directory.path / "shipped").write_text("3 1200\nrubbish\n")
    assert (directory.cursor(), directory.marks()) == (Cursor(3, 1200), [])
    directory.release()

import tracemalloc

import pytest
from sqlalchemy.exc import DataError, IntegrityError, OperationalError

from gateway.metering.ledger.database import LedgerUnavailableError
from gateway.metering.ledger.ledger import Inserted, Ledger
from gateway.metering.records import parse_line
from gateway.metering.wal.insertion import InserterUnavailableError, insert_lines
from gateway.metering.wal.segments import Cursor, WorkerDirectory
from gateway.metering.wal.shipper import Shipper
from gateway.observability.metrics import Metrics
from tests.support.empty_ledgers import put_sqlite
from tests.support.waiting import PATIENCE_S
from tests.unit.gateway.metering.make import LogStub, intent, record


class Away(Ledger):
    """A ledger whose database is away when told so; with `after_commit`, it goes only once it has committed."""

    away = False
    after_commit = False

    def insert(self, records):
        if self.away and not self.after_commit:
            raise LedgerUnavailableError("away")
        result = super().insert(records)
        if self.away:
            raise LedgerUnavailableError("away after the commit")
        return result


@pytest.fixture(autouse=True)
def _patient(monkeypatch):
    """A flush that is to succeed may take as long as a busy machine needs."""
    monkeypatch.setattr(Shipper.flush_now, "__defaults__", (PATIENCE_S,))


@pytest.fixture
def ledger(tmp_path):
    made = Away(f"sqlite:///{put_sqlite(tmp_path / 'ledger.db')}")
    yield made
    made.close()


@pytest.fixture
def mine(tmp_path):
    made = WorkerDirectory.create(tmp_path / "usage", "mine")
    yield made
    made.release()


@pytest.fixture
def metrics():
    return Metrics()


@pytest.fixture
def shipper(tmp_path, mine, ledger, metrics):
    return Shipper(tmp_path / "usage", mine, LogStub(), ledger, metrics)


def dead_worker(tmp_path, *segments, name="dead"):
    directory = WorkerDirectory.create(tmp_path / "usage", name)
    for number, lines in enumerate(segments, 1):
        directory.segment(number).write_bytes(b"".join(lines))
    directory.release()
    return directory


def outcomes(ledger):
    return {r.request_id: r.outcome for r in ledger.usage(start=0, end=2**62, limit=10_000)}


def result(metrics, name):
    return metrics.registry.get_sample_value("florin_usage_records_total", {"result": name}) or 0


def test_finals_are_shipped_and_finished_segments_deleted(shipper, mine, ledger, metrics):
    mine.segment(1).write_bytes(intent("a").line() + record("a").line() + intent("b").line())
    mine.segment(2).write_bytes(intent("b", seq=1).line() + record("b").line() + b'{"torn')
    assert shipper.flush_now(PATIENCE_S)
    assert outcomes(ledger) == {"a": "ok", "b": "ok"}
    assert mine.segments() == [2]
    with mine.segment(2).open("ab") as file:
        file.write(b'"}\n' + record("c").line())
    assert shipper.flush_now(PATIENCE_S)
    assert outcomes(ledger) == {"a": "ok", "b": "ok", "c": "ok"}
    assert result(metrics, "shipped") == 3
    assert result(metrics, "duplicate") == 0  # it went on where it had been


def test_nothing_is_let_go_before_the_commit(shipper, mine, ledger):
    mine.segment(1).write_bytes(record("a").line())
    mine.segment(2).write_bytes(record("b").line())
    ledger.away = True
    for _ in range(3):
        with pytest.raises(LedgerUnavailableError):
            shipper.flush_now(PATIENCE_S)
    assert mine.cursor() == Cursor()
    assert mine.segments() == [1, 2]
    ledger.away = False
    assert shipper.flush_now(PATIENCE_S)
    assert outcomes(ledger) == {"a": "ok", "b": "ok"}


def test_a_commit_whose_answer_was_lost_counts_once(shipper, mine, ledger, metrics):
    mine.segment(1).write_bytes(record("a").line())
    ledger.away = ledger.after_commit = True
    with pytest.raises(LedgerUnavailableError):
        shipper.flush_now(PATIENCE_S)
    ledger.away = False
    assert shipper.flush_now(PATIENCE_S)
    assert outcomes(ledger) == {"a": "ok"}
    assert result(metrics, "duplicate") == 1
    assert result(metrics, "quarantined") == 0


def test_a_dead_worker_s_log_is_shipped_and_its_open_attempts_closed(shipper, ledger, tmp_path, metrics):
    dead = dead_worker(
        tmp_path,
        [intent("done").line(), intent("cut").line(), record("done").line()],
        [
            intent("cut", seq=1, completion_tokens=3).line(),
            intent("cut", seq=2, completion_tokens=8, usage_source="engine_partial").line(),
            record("torn").line()[:-40],
        ],
    )
    assert shipper.flush_now(PATIENCE_S)
    assert outcomes(ledger) == {"done": "ok", "cut": "orphaned"}
    [cut] = [r for r in ledger.usage(start=0, end=2**62) if r.request_id == "cut"]
    assert (cut.completion_tokens, cut.usage_source, cut.billable) == (8, "engine_partial", False)
    assert not dead.path.exists()
    assert result(metrics, "orphaned") == 1


def test_what_a_later_version_left_waits_for_it(shipper, ledger, tmp_path, metrics):
    later = dead_worker(tmp_path, [record("a").line()[:-2] + b',"more":""}\n'], name="a-later")
    dead_worker(tmp_path, [record("b").line()])
    for _ in range(2):
        assert shipper.flush_now(PATIENCE_S)
    assert outcomes(ledger) == {"b": "ok"}
    assert later.segments() == [1]
    assert shipper.newer == {later.path}
    assert result(metrics, "damaged") == 0


def test_a_line_that_waited_for_its_sync_does_not_outdo_a_later_one(shipper, ledger, tmp_path):
    """A new segment begins with the counts of its moment; what was not synced in the one before follows."""
    now = intent("cut", seq=4, completion_tokens=8, usage_source="engine_partial")
    dead_worker(tmp_path, [now.line(), intent("cut").line(), intent("cut", seq=1).line()])
    assert shipper.flush_now(PATIENCE_S)
    [cut] = ledger.usage(start=0, end=2**62)
    assert (cut.completion_tokens, cut.usage_source) == (8, "engine_partial")


def test_an_adoption_that_breaks_off_is_taken_up_again(shipper, ledger, tmp_path):
    dead = dead_worker(tmp_path, [intent("cut").line(), record("done").line()])
    ledger.away = ledger.after_commit = True
    with pytest.raises(LedgerUnavailableError):
        shipper.flush_now(PATIENCE_S)
    assert dead.path.exists()
    ledger.after_commit = ledger.away = False
    assert shipper.flush_now(PATIENCE_S)
    assert outcomes(ledger) == {"done": "ok", "cut": "orphaned"}
    assert not dead.path.exists()


def test_damaged_lines_are_passed_over_and_counted(shipper, mine, ledger, metrics):
    mine.segment(1).write_bytes(record("a").line()[:-9] + b"\n" + b"\x00\xff\n" + record("b").line())
    assert shipper.flush_now(PATIENCE_S)
    assert outcomes(ledger) == {"b": "ok"}
    assert result(metrics, "damaged") == 1


class Picky(Ledger):
    """Takes no record of the requests in `refuses`, as a database with a rule of its own."""

    refuses = frozenset()
    error = ValueError("no")

    def insert(self, records):
        if any(r.request_id in self.refuses for r in records):
            raise self.error
        return super().insert(records)


def unavailable(cause):
    error = LedgerUnavailableError("the database says no")
    error.__cause__ = cause
    return error


REFUSALS = [
    ValueError("no"),
    OverflowError("too large"),
    unavailable(DataError("INSERT", {}, Exception("too long"))),
    unavailable(IntegrityError("INSERT", {}, Exception("null"))),
]


@pytest.mark.parametrize("error", REFUSALS, ids=lambda e: type(e.__cause__ or e).__name__)
def test_records_that_no_ledger_takes_hold_up_no_others(tmp_path, mine, metrics, error):
    ledger = Picky(f"sqlite:///{put_sqlite(tmp_path / 'ledger.db')}")
    ledger.refuses, ledger.error = {"r3", "r700"}, error
    mine.segment(1).write_bytes(b"".join(record(f"r{i}").line() for i in range(1000)))
    shipper = Shipper(tmp_path / "usage", mine, LogStub(), ledger, metrics)
    assert shipper.flush_now(PATIENCE_S)
    assert outcomes(ledger).keys() == {f"r{i}" for i in range(1000)} - {"r3", "r700"}
    aside = (tmp_path / "usage" / "refused.jsonl").read_bytes().splitlines()
    assert [parse_line(line).request_id for line in aside] == ["r3", "r700"]
    assert result(metrics, "damaged") == 2
    assert result(metrics, "shipped") == 998
    ledger.close()


def test_a_database_that_is_away_refuses_nobody(tmp_path, mine, metrics):
    ledger = Picky(f"sqlite:///{put_sqlite(tmp_path / 'ledger.db')}")
    ledger.refuses = {"r3"}
    ledger.error = unavailable(OperationalError("INSERT", {}, Exception("locked")))
    mine.segment(1).write_bytes(b"".join(record(f"r{i}").line() for i in range(10)))
    shipper = Shipper(tmp_path / "usage", mine, LogStub(), ledger, metrics)
    with pytest.raises(LedgerUnavailableError):
        shipper.flush_now(PATIENCE_S)
    assert not (tmp_path / "usage" / "refused.jsonl").exists()
    ledger.close()


class InserterStub:
    """Inserts lines as another process would. Mutable: what it was given."""

    def __init__(self, ledger, error=None, *, running=False):
        self.ledger, self.error, self.running, self.given = ledger, error, running, []

    def __call__(self, lines):
        self.given.append(len(lines))
        if self.error:
            raise self.error
        return insert_lines(self.ledger, lines)


@pytest.mark.parametrize(
    ("records", "running", "offloaded"),
    [(99, False, []), (100, False, [100]), (850, False, [500, 350]), (1, True, [1])],
)
def test_another_process_inserts_if_it_runs_or_is_worth_it(
    tmp_path, mine, ledger, records, running, offloaded
):
    metrics, inserter = Metrics(), InserterStub(ledger, running=running)
    mine.segment(1).write_bytes(b"".join(record(f"r{i}").line() for i in range(records)))
    shipper = Shipper(tmp_path / "usage", mine, LogStub(), ledger, metrics, inserter=inserter)
    assert shipper.flush_now(PATIENCE_S)
    assert inserter.given == offloaded
    assert len(outcomes(ledger)) == result(metrics, "shipped") == records


def test_records_are_inserted_here_if_the_other_process_cannot_run(tmp_path, mine, ledger, metrics, caplog):
    inserter = InserterStub(ledger, InserterUnavailableError("killed"))
    mine.segment(1).write_bytes(b"".join(record(f"r{i}").line() for i in range(200)))
    shipper = Shipper(tmp_path / "usage", mine, LogStub(), ledger, metrics, inserter=inserter)
    assert shipper.flush_now(PATIENCE_S)
    assert len(outcomes(ledger)) == 200
    assert "killed" in caplog.text


def test_records_wait_if_the_other_process_finds_no_ledger(tmp_path, mine, ledger, metrics):
    inserter = InserterStub(ledger, LedgerUnavailableError("away"))
    mine.segment(1).write_bytes(b"".join(record(f"r{i}").line() for i in range(200)))
    shipper = Shipper(tmp_path / "usage", mine, LogStub(), ledger, metrics, inserter=inserter)
    with pytest.raises(LedgerUnavailableError):
        shipper.flush_now(PATIENCE_S)
    assert shipper.age > 0
    inserter.error = None
    assert shipper.flush_now(PATIENCE_S)
    assert len(outcomes(ledger)) == 200


class Counting:
    """A ledger that keeps nothing."""

    count = 0

    def insert(self, records):
        self.count += len(records)
        return Inserted(new=len(records))


@pytest.mark.parametrize("dead", [False, True])
def test_memory_does_not_grow_with_the_backlog(tmp_path, mine, metrics, dead):
    backlog, parts = 12_000, 4
    directory = WorkerDirectory.create(tmp_path / "usage", "dead") if dead else mine
    size = 0
    for part in range(1, parts + 1):
        lines = [record(f"r{part}-{i}").line() for i in range(backlog // parts)]
        size += directory.segment(part).write_bytes(b"".join(lines))
    if dead:
        directory.release()
    ledger = Counting()
    shipper = Shipper(tmp_path / "usage", mine, LogStub(), ledger, metrics)
    tracemalloc.start()
    try:
        assert shipper.flush_now(PATIENCE_S)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert ledger.count == backlog
    assert peak < size / 2


def test_a_segment_that_is_not_yet_synced_is_not_let_go_for(shipper, mine, ledger, monkeypatch):
    monkeypatch.setattr(LogStub, "synced_segment", 1)
    mine.segment(1).write_bytes(intent("open").line() + record("a").line())
    mine.segment(2).write_bytes(record("b").line())
    assert shipper.flush_now(PATIENCE_S)
    assert outcomes(ledger) == {"a": "ok", "b": "ok"}
    assert mine.segments() == [1, 2]
    monkeypatch.setattr(LogStub, "synced_segment", 2)
    mine.segment(3).write_bytes(b"")
    assert shipper.flush_now(PATIENCE_S)
    assert mine.segments() == [2, 3]


def test_a_disk_too_full_for_the_note_is_still_made_room_on(shipper, mine, ledger, tmp_path, monkeypatch):
    mine.segment(1).write_bytes(record("a").line())
    mine.segment(2).write_bytes(record("b").line())
    with monkeypatch.context() as disk:
        disk.setattr(WorkerDirectory, "save_cursor", lambda *_: (tmp_path / "nowhere").read_bytes())
        for _ in range(3):
            with pytest.raises(OSError):
                shipper.flush_now(PATIENCE_S)
    assert mine.segments() == [2]
    assert shipper.flush_now(PATIENCE_S)
    assert outcomes(ledger) == {"a": "ok", "b": "ok"}


def test_the_age_of_the_backlog_is_shown(shipper, mine, ledger, metrics):
    mine.segment(1).write_bytes(record("a", dispatched=0, first_token=None, ended=1).line())
    ledger.away = True
    with pytest.raises(LedgerUnavailableError):
        shipper.flush_now(PATIENCE_S)
    assert shipper.age > 1e9
    ledger.away = False
    assert shipper.flush_now(PATIENCE_S)
    assert shipper.age == 0


def test_a_backlog_is_shipped_as_far_as_patience_goes(shipper, mine, ledger):
    mine.segment(1).write_bytes(b"".join(record(f"r{i}").line() for i in range(2000)))
    assert not shipper.flush_now(patience=0)
    assert 0 <= len(outcomes(ledger)) < 2000
    assert shipper.flush_now(PATIENCE_S)
    assert len(outcomes(ledger)) == 2000


def test_close_leaves_nothing_behind(tmp_path, mine, ledger, metrics):
    shipper = Shipper(tmp_path / "usage", mine, LogStub(), ledger, metrics, last_seconds=PATIENCE_S)
    mine.segment(1).write_bytes(record("a").line() + intent("open").line())
    shipper.start()
    shipper.close()
    assert outcomes(ledger) == {"a": "ok", "open": "orphaned"}
    assert not mine.path.exists()


def test_close_waits_for_the_database_as_long_as_it_may(mine, ledger, tmp_path, metrics):
    mine.segment(1).write_bytes(record("a").line())
    insert, failures = ledger.insert, iter((True, True))

    def back_at_the_third_attempt(records):
        ledger.away = next(failures, False)
        return insert(records)

    ledger.insert = back_at_the_third_attempt
    shipper = Shipper(tmp_path / "usage", mine, LogStub(), ledger, metrics, last_seconds=PATIENCE_S)
    shipper.start()
    shipper.close()
    assert outcomes(ledger) == {"a": "ok"}


def test_close_with_the_database_away_leaves_the_log_to_the_next(mine, ledger, tmp_path, metrics, caplog):
    shipper = Shipper(tmp_path / "usage", mine, LogStub(), ledger, metrics, last_seconds=0)
    mine.segment(1).write_bytes(record("a").line() + intent("open").line() + record("b").line())
    ledger.away = True
    shipper.start()
    shipper.close()
    assert "2 usage records are not in it yet" in caplog.text
    ledger.away = False
    heir = WorkerDirectory.create(tmp_path / "usage", "heir")
    Shipper(tmp_path / "usage", heir, LogStub(), ledger, Metrics()).flush_now(PATIENCE_S)
    assert outcomes(ledger) == {"a": "ok", "b": "ok", "open": "orphaned"}
    heir.release()

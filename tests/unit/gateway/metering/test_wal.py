import errno
import os
import threading

import pytest

from gateway.metering import wal as wal_module
from gateway.metering.records import parse_line
from gateway.metering.segments import Cursor, WorkerDirectory
from gateway.metering.wal import WriteAheadLog
from gateway.metrics import Metrics
from tests.unit.gateway.metering.make import intent, record


@pytest.fixture
def directory(tmp_path):
    made = WorkerDirectory.create(tmp_path / "usage", "w1")
    yield made
    made.release()


@pytest.fixture
def make(directory):
    made = []

    def wal(**options):
        log = WriteAheadLog(directory, Metrics(), **options)
        log.open()
        made.append(log)
        return log

    yield wal
    for log in made:
        log.close()


def written(directory):
    return [parse_line(line) for batch in directory.batches(Cursor(), dead=True) for line in batch.lines]


def test_what_is_appended_is_on_disk_after_a_flush(make, directory):
    wal = make()
    records = [record(f"req-{i}") for i in range(100)]
    for made in records:
        assert wal.append(lambda made=made: made)
    assert wal.flush()
    assert written(directory) == records


def test_the_flusher_writes_by_itself(make, directory):
    wal = make()
    done = threading.Event()

    def entry():
        done.set()
        return record()

    wal.append(entry)
    assert done.wait(5)
    wal.close()
    assert written(directory) == [record()]


def test_an_entry_that_fails_or_gives_nothing_stops_nothing(make, directory, caplog):
    wal = make()
    wal.append(lambda: None)
    wal.append(lambda: 1 / 0)
    wal.append(record)
    assert wal.flush()
    assert written(directory) == [record()]
    assert "could not be made" in caplog.text


def test_segments_rotate_and_begin_with_what_is_open(make, directory):
    still_open = intent("long", seq=7)
    wal = make(segment_bytes=2000, carry=lambda: [still_open])
    for i in range(20):
        wal.append(lambda i=i: record(f"req-{i}"))
        assert wal.flush()
    assert len(directory.segments()) > 3
    for number in directory.segments():
        assert parse_line(directory.segment(number).read_bytes().splitlines()[0]) == still_open
    finals = [r.request_id for r in written(directory) if r.kind == "final"]
    assert finals == [f"req-{i}" for i in range(20)]


class Disk:
    """os.write and fdatasync that can be told to fail; a failing write leaves half of its bytes."""

    def __init__(self, monkeypatch):
        self.full = False
        self.sync_fails = False
        self._write, self._sync = os.write, os.fdatasync
        monkeypatch.setattr(wal_module.os, "write", self.write)
        monkeypatch.setattr(wal_module.os, "fdatasync", self.sync)
        monkeypatch.setattr(wal_module, "_RETRY", 0.0)

    def write(self, file, data):
        if self.full:
            self._write(file, bytes(data[: len(data) // 2]))
            raise OSError(errno.ENOSPC, "No space left on device")
        return self._write(file, data)

    def sync(self, file):
        if self.sync_fails:
            raise OSError(errno.EIO, "Input/output error")
        self._sync(file)


@pytest.mark.parametrize("fault", ["full", "sync_fails"])
def test_a_failing_disk_is_seen_and_what_was_appended_is_written_later(make, directory, monkeypatch, fault):
    disk = Disk(monkeypatch)
    wal = make()
    wal.append(lambda: record("before"))
    assert wal.flush()
    assert wal.healthy
    setattr(disk, fault, True)
    wal.append(lambda: record("meanwhile"))
    assert not wal.flush()
    assert not wal.flush()
    assert not wal.healthy
    setattr(disk, fault, False)
    wal.append(lambda: record("after"))
    assert wal.flush()
    assert wal.healthy
    names = []
    for batch in directory.batches(Cursor(), dead=True):
        for line in batch.lines:
            try:
                names.append(parse_line(line).request_id)
            except ValueError:
                continue  # the torn end that the full disk left
    assert list(dict.fromkeys(names)) == ["before", "meanwhile", "after"]
    assert not list(directory.path.glob(".*.jsonl"))


def test_memory_is_bounded_while_nothing_can_be_written(make, monkeypatch, caplog):
    disk = Disk(monkeypatch)
    wal = make(max_pending=5000)
    disk.full = True
    for i in range(100):
        wal.append(lambda i=i: record(f"req-{i}"))
    wal.flush()
    assert len(wal._unsynced) < 6000
    assert "no room left" in caplog.text
    disk.full = False


def test_a_full_queue_takes_no_more_and_says_so(directory):
    wal = WriteAheadLog(directory, Metrics(), max_queue=2)  # not opened: nobody drains it
    assert wal.append(record)
    assert wal.append(record)
    assert not wal.append(record)
    assert not wal.healthy


def test_a_log_that_cannot_be_written_at_all_does_not_open(directory):
    directory.remove()
    with pytest.raises(OSError):
        WriteAheadLog(directory, Metrics()).open()

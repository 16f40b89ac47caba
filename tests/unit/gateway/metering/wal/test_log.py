import asyncio
import errno
import os
import threading
import time

import pytest

from gateway.metering.records import parse_line
from gateway.metering.wal import log as wal_module
from gateway.metering.wal.log import WriteAheadLog
from gateway.metering.wal.segments import Cursor, WorkerDirectory
from tests.support.waiting import PATIENCE_S, until_now
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
        log = WriteAheadLog(directory, **options)
        log.open()
        made.append(log)
        return log

    yield wal
    for log in made:
        log.close()


def written(directory):
    """The records in the log, whole lines only."""
    found = []
    for batch in directory.batches(Cursor(), dead=True):
        for line in batch.lines:
            try:
                found.append(parse_line(line))
            except ValueError:
                continue  # the torn end that a full disk left
    return found


def names(directory):
    return list(dict.fromkeys(r.request_id for r in written(directory)))


def test_what_is_appended_is_written_when_append_returns(make, directory):
    wal = make(sync_interval=3600)
    records = [record(f"req-{i}") for i in range(100)]
    for number, made in enumerate(records, 1):
        assert wal.append(made.line())
        assert len(written(directory)) == number
    assert written(directory) == records


def test_the_thread_syncs_by_itself(make, monkeypatch):
    synced = threading.Event()
    wal = make()
    sync = os.fdatasync
    monkeypatch.setattr(wal_module.os, "fdatasync", lambda file: (sync(file), synced.set()))
    wal.append(record().line())
    assert synced.wait(PATIENCE_S)


def test_while_the_thread_has_the_file_lines_wait_and_keep_their_order(make, directory):
    wal = make()
    with wal._writing:
        wal.append(record("one").line())
        wal.append(record("two").line())
        assert written(directory) == []
    wal.append(record("three").line())
    assert wal.flush()
    assert names(directory) == ["one", "two", "three"]


async def test_whoever_must_know_waits_until_what_waited_is_written(make, directory):
    wal = make()
    await wal.settled()  # nothing waits: at once
    with wal._writing:
        wal.append(record("one").line())
        waiting = asyncio.ensure_future(wal.settled())
        await asyncio.sleep(0.05)
        assert not waiting.done()
    await asyncio.wait_for(waiting, PATIENCE_S)
    assert names(directory) == ["one"]


async def test_a_disk_that_does_not_answer_stops_nobody_for_long(make, directory, monkeypatch, caplog):
    monkeypatch.setattr(wal_module, "_STALL", 0.01)
    monkeypatch.setattr(wal_module, "_PATIENCE", 0.2)
    wal = make()
    answer, asked = threading.Event(), threading.Event()
    sync = os.fdatasync
    monkeypatch.setattr(
        wal_module.os, "fdatasync", lambda file: (asked.set(), answer.wait(PATIENCE_S), sync(file))
    )
    wal.append(record("one").line())
    await asyncio.to_thread(asked.wait, PATIENCE_S)
    await asyncio.sleep(0.02)
    wal.append(record("two").line())
    assert names(directory) == ["one"]
    await wal.settled()
    assert not wal.healthy
    assert "does not respond" in caplog.text
    answer.set()
    assert await asyncio.to_thread(wal.flush)
    assert wal.healthy
    assert names(directory) == ["one", "two"]


def test_a_sync_that_ends_while_a_line_is_written_disturbs_nothing(make, directory, monkeypatch):
    """The log's thread may set the time back to None between any two reads of it."""
    wal = make()
    values = iter([time.monotonic()])
    read = property(lambda _: next(values, None), lambda *_: None)
    monkeypatch.setattr(wal_module.WriteAheadLog, "_syncing", read, raising=False)
    assert wal.append(record("one").line())
    assert names(directory) == ["one"]


def test_checkpoints_come_about_once_a_second_and_stop_nothing_when_they_fail(make, directory, caplog):
    ticks = 0

    def tick():
        nonlocal ticks
        ticks += 1
        return [intent("long", seq=1).line()] if ticks == 2 else [] if ticks > 2 else 1 / 0

    wal = make(tick=tick)
    for number in (1, 2):
        wal._ticked_at = 0
        until_now(lambda number=number: ticks >= number)
    wal.append(record().line())
    assert wal.flush()
    assert names(directory) == ["long", "req-1"]
    assert "writing failed" in caplog.text
    assert wal.healthy


def test_segments_rotate_and_begin_with_what_is_open(make, directory):
    still_open = intent("long", seq=7)
    wal = make(segment_bytes=2000, carry=lambda: [still_open.line()])
    for i in range(20):
        wal.append(record(f"req-{i}").line())
        assert wal.flush()
    assert len(directory.segments()) > 3
    assert wal.synced_segment == directory.segments()[-1]
    for number in directory.segments():
        assert parse_line(directory.segment(number).read_bytes().splitlines()[0]) == still_open
    # The log's own thread may turn the segment before it has synced the last line, and then writes it again.
    assert names(directory) == ["long", *(f"req-{i}" for i in range(20))]


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
async def test_a_failing_disk_is_seen_and_what_was_appended_is_written_later(
    make, directory, monkeypatch, caplog, fault
):
    disk = Disk(monkeypatch)
    wal = make()
    wal.append(record("before").line())
    assert wal.flush()
    assert wal.healthy
    setattr(disk, fault, True)
    wal.append(record("meanwhile").line())
    assert not wal.flush()
    wal.append(record("then").line())
    assert not wal.flush()
    assert not wal.healthy
    monkeypatch.setattr(wal_module, "_PATIENCE", 600)
    await asyncio.wait_for(wal.settled(), PATIENCE_S)  # a full disk holds up no caller
    setattr(disk, fault, False)
    wal.append(record("after").line())
    assert wal.flush()
    assert wal.healthy
    assert names(directory) == ["before", "meanwhile", "then", "after"]
    assert not list(directory.path.glob(".*.jsonl"))
    assert caplog.text.count("held in memory") == 1
    assert caplog.text.count("writable again") == 1


def test_a_new_segment_that_cannot_be_made_leaves_the_old_one_in_use(make, directory, monkeypatch):
    wal = make(segment_bytes=1_000)
    rename = type(directory.path).rename

    def fails(path, target):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(type(directory.path), "rename", fails)
    monkeypatch.setattr(wal_module, "_RETRY", 0.0)
    for i in range(5):
        wal.append(record(f"req-{i}").line())
        wal.flush()
    assert not wal.healthy
    assert names(directory) == [f"req-{i}" for i in range(5)]
    assert directory.segments() == [1]
    monkeypatch.setattr(type(directory.path), "rename", rename)
    assert wal.flush()
    assert wal.healthy
    assert directory.segments() == [1, 2]


def test_memory_is_bounded_while_nothing_can_be_written_and_finals_have_the_last_half(
    make, directory, monkeypatch
):
    disk = Disk(monkeypatch)
    wal = make(max_pending=20_000)
    disk.full = True
    taken = [wal.append(intent(f"intent-{i}").line(), final=False) for i in range(100)]
    more = [wal.append(record(f"final-{i}").line()) for i in range(100)]
    assert any(taken)
    assert any(more)
    assert not all(more)
    disk.full = False
    assert wal.flush()
    assert wal.append(record("after").line())
    assert wal.flush()
    kept = [f"intent-{i}" for i, ok in enumerate(taken) if ok] + [
        f"final-{i}" for i, ok in enumerate(more) if ok
    ]
    assert names(directory) == [*kept, "after"]
    assert wal._taken_bytes == wal._done_bytes
    assert wal.healthy


def test_a_log_that_cannot_be_written_at_all_does_not_open(directory):
    directory.remove()
    with pytest.raises(OSError):
        WriteAheadLog(directory).open()

"""The process that inserts usage records for several workers, killed and stopped: no record is lost or doubled."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import psutil
import pytest
from sqlalchemy import func, select

from gateway.metering.ledger.database import LedgerUnavailableError
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import usage_records
from gateway.metering.wal.insertion import InserterUnavailableError
from gateway.metering.wal.insertion_process import InsertionClient, InsertionProcess, Start, spawn
from gateway.metering.wal.segments import WorkerDirectory
from gateway.metering.wal.shipper import LiveLog, Shipper
from gateway.observability.metrics import Metrics
from tests.support.waiting import until_now
from tests.unit.gateway.metering.make import record

SHUT_LOG = cast("LiveLog", SimpleNamespace(synced_segment=1, flush=lambda: True))


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'ledger.db'}"


@pytest.fixture
def process(url: str) -> Iterator[InsertionProcess]:
    made = InsertionProcess(url, spawn)
    yield made
    made.close()


def pid_of(process: InsertionProcess) -> int:
    running = process._process
    return (running.pid or 0) if running is not None else 0


def stored(url: str) -> int:
    ledger = Ledger(url)
    try:
        with ledger.read() as connection:
            return connection.execute(select(func.count()).select_from(usage_records)).scalar_one()
    finally:
        ledger.close()


def lines(name: str, count: int) -> list[bytes]:
    return [record(f"{name}{i}").line() for i in range(count)]


def test_each_record_of_each_worker_is_inserted_once_whenever_it_is_killed(
    tmp_path: Path, url: str, process: InsertionProcess
):
    process.ensure_running()
    over, killed = threading.Event(), 0

    def ship(name: str) -> bool:
        directory, ledger = WorkerDirectory.create(tmp_path / name), Ledger(url)
        directory.segment(1).write_bytes(b"".join(lines(name, 10_000)))
        client = InsertionClient(process.entrance)
        shipper = Shipper(tmp_path / name, directory, SHUT_LOG, ledger, Metrics(), inserter=client)
        while not over.is_set() and not shipper.flush_now(60):
            pass
        client.close()
        directory.release()
        ledger.close()
        return True

    workers = [threading.Thread(target=ship, args=(name,)) for name in ("a", "b")]
    for worker in workers:
        worker.start()
    while any(worker.is_alive() for worker in workers):
        time.sleep(0.1)
        if process.ensure_running() and killed < 5:
            os.kill(pid_of(process), signal.SIGKILL)
            killed += 1
    over.set()
    assert killed > 3
    assert stored(url) == 20_000


def test_a_stopped_worker_holds_up_no_other(url: str, process: InsertionProcess):
    process.ensure_running()
    stopped, other = InsertionClient(process.entrance), InsertionClient(process.entrance)
    stopped(lines("a", 1))
    assert stopped._connection is not None
    os.write(stopped._connection.fileno(), b"\0\0\1\0half of a message")
    assert other(lines("b", 1)).inserted.new == 1
    assert stored(url) == 2
    stopped.close()
    other.close()


def test_a_stopped_process_is_not_waited_for_for_ever(url: str, process: InsertionProcess):
    process.ensure_running()
    client = InsertionClient(process.entrance, patience=0.3)
    until_now(lambda: responds(client))
    os.kill(pid_of(process), signal.SIGSTOP)
    with pytest.raises(InserterUnavailableError, match="no response"):
        client(lines("a", 1000))
    os.kill(pid_of(process), signal.SIGCONT)
    client.close()
    patient = InsertionClient(process.entrance)
    assert patient(lines("b", 1)).inserted.new == 1  # of the others, it may have heard half
    patient.close()


def responds(client: InsertionClient) -> bool:
    try:
        client([])
    except InserterUnavailableError:
        return False
    return True


def test_a_ledger_that_is_unavailable_is_an_error_until_it_is_back(tmp_path: Path):
    process = InsertionProcess(f"sqlite:///{tmp_path / 'dir' / 'ledger.db'}", spawn)
    client = InsertionClient(process.entrance, process.ensure_running)
    assert not client.running
    (tmp_path / "dir").write_text("in the way")
    with pytest.raises(LedgerUnavailableError):
        client(lines("a", 1))
    assert client.running
    (tmp_path / "dir").unlink()
    assert client(lines("a", 1)).inserted.new == 1
    client.close()
    process.close()


def test_it_pauses_before_it_is_restarted_again_and_again(process: InsertionProcess, caplog):
    assert process.ensure_running()
    for _ in range(3):
        os.kill(pid_of(process), signal.SIGKILL)
        until_now(lambda: not process.ensure_running())
        until_now(process.ensure_running)
    assert process._pause == pytest.approx(0.8)
    assert len([r for r in caplog.records if "died; restarting" in r.getMessage()]) == 3


def test_it_is_started_again_after_it_could_not_be(url: str, caplog):
    failures = [OSError("no more processes")]

    def start(*args: object) -> object:
        if failures:
            raise failures.pop()
        return spawn(*args)

    process = InsertionProcess(url, cast("Start", start))
    assert not process.ensure_running()
    until_now(process.ensure_running)
    assert "no more processes" in caplog.text
    process.close()


def test_it_ends_with_its_gateway_and_ignores_signals_to_the_whole_group(url: str):
    with ExitStack() as stack:
        process = InsertionProcess(url, spawn)
        stack.callback(process.close)
        process.ensure_running()
        client = InsertionClient(process.entrance)
        client(lines("a", 1))
        running = psutil.Process(pid_of(process))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            running.send_signal(number)
        assert client(lines("b", 1)).inserted.new == 1
        client.close()
        process.entrance.close()  # as if the workers and the supervisor were killed
        process._inner.close()
        until_now(lambda: running.status() == psutil.STATUS_ZOMBIE)

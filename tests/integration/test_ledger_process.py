"""The process beside the worker: what goes through it, what it survives, and that it never outlives its
worker."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import pickle
import signal
import sys
import textwrap
import time
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.popen_spawn_posix import Popen
from pathlib import Path

import psutil
import pytest
from sqlalchemy import select

from gateway.costs.maintenance.ledger_process import LedgerProcess
from gateway.metering.ledger.database import LedgerUnavailableError
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import snapshots
from tests.support.waiting import PATIENCE_S, until


@pytest.fixture
async def ledger_process(tmp_path: Path):
    opened = LedgerProcess(f"sqlite:///{tmp_path / 'ledger.db'}")
    yield opened
    await opened.close()


def put(ledger: Ledger, name: str, *, at: int) -> int:
    with ledger.write() as connection:
        connection.execute(snapshots.insert().values(name=name, at=at, document="{}"))
    return os.getpid()


def names(ledger: Ledger) -> list[str]:
    with ledger.read() as connection:
        return list(connection.execute(select(snapshots.c.name)).scalars())


def fail(ledger: Ledger, kind: str) -> None:
    if kind == "unavailable":
        raise LedgerUnavailableError("away")
    raise ValueError(kind)


def die_once(ledger: Ledger, mark: str) -> str:
    """Kills its process the first time."""
    if not Path(mark).exists():
        Path(mark).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "alive"


def die(ledger: Ledger) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def write_for_ever(ledger: Ledger, mark: str) -> None:
    with ledger.write() as connection:
        connection.execute(snapshots.insert().values(name="half", at=1, document="{}"))
        Path(mark).touch()
        time.sleep(600)


async def test_it_runs_in_one_other_process_that_starts_with_the_first_question(
    ledger_process: LedgerProcess,
):
    assert repr(ledger_process) == "<LedgerProcess not opened>"
    first, second = await asyncio.gather(
        ledger_process.run(put, "a", at=1), ledger_process.run(put, "b", at=2)
    )
    assert first == second != os.getpid()
    assert sorted(await ledger_process.run(names)) == ["a", "b"]
    assert repr(ledger_process) == "<LedgerProcess open>"


async def test_exceptions_cross(ledger_process: LedgerProcess):
    with pytest.raises(LedgerUnavailableError, match="away"):
        await ledger_process.run(fail, "unavailable")
    with pytest.raises(ValueError, match="no such month"):
        await ledger_process.run(fail, "no such month")
    assert await ledger_process.run(names) == []


async def test_a_ledger_that_cannot_be_opened_is_an_error_each_time_until_it_can(tmp_path: Path):
    ledger_process = LedgerProcess(f"sqlite:///{tmp_path / 'dir' / 'ledger.db'}")
    (tmp_path / "dir").touch()
    try:
        for _ in range(2):
            with pytest.raises(LedgerUnavailableError):
                await ledger_process.run(names)
        (tmp_path / "dir").unlink()
        assert await ledger_process.run(names) == []
    finally:
        await ledger_process.close()


async def test_a_process_that_dies_is_replaced(ledger_process: LedgerProcess, tmp_path: Path):
    assert await ledger_process.run(die_once, str(tmp_path / "mark")) == "alive"
    pid = await ledger_process.run(put, "a", at=1)
    os.kill(pid, signal.SIGKILL)
    others = await asyncio.gather(*(ledger_process.run(put, f"b{n}", at=n) for n in range(4)))
    assert len(set(others)) == 1
    assert pid not in others


async def test_a_question_that_kills_its_process_each_time_says_so_and_the_next_is_answered(
    ledger_process: LedgerProcess,
):
    with pytest.raises(BrokenProcessPool, match="terminated abruptly") as caught:
        await ledger_process.run(die)
    assert pickle.loads(pickle.dumps(caught.value)).args == caught.value.args
    assert await ledger_process.run(names) == []


async def test_at_the_end_what_runs_too_long_is_cut_off_and_undone(tmp_path: Path):
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    ledger_process = LedgerProcess(url, patience=0.2)
    running = asyncio.create_task(ledger_process.run(write_for_ever, str(tmp_path / "mark")))
    await until((tmp_path / "mark").exists)
    await ledger_process.close()
    await asyncio.wait([running])
    assert running.exception() is not None
    ledger = Ledger(url)
    assert names(ledger) == []
    ledger.close()


def take_a_moment(ledger: Ledger, begun: Path) -> int:
    begun.touch()
    time.sleep(0.3)
    return os.getpid()


async def test_at_the_end_what_runs_shortly_is_finished(tmp_path: Path):
    ledger_process = LedgerProcess(f"sqlite:///{tmp_path / 'ledger.db'}")
    pid = await ledger_process.run(put, "a", at=1)
    begun = tmp_path / "begun"
    running = asyncio.create_task(ledger_process.run(take_a_moment, begun))
    while not begun.exists():  # what has only been asked for may be given up
        await asyncio.sleep(0.01)
    await ledger_process.close()
    assert await running == pid
    assert not psutil.pid_exists(pid)


WORKER = textwrap.dedent("""
    import asyncio, sys, time
    from gateway.costs.maintenance.ledger_process import LedgerProcess

    def wait(ledger, seconds):
        time.sleep(seconds)

    async def main():
        process = LedgerProcess(sys.argv[1])
        await process.run(wait, 0)
        print("ready", flush=True)
        await process.run(wait, 600)

    if __name__ == "__main__":
        asyncio.run(main())
""")


async def test_a_worker_that_is_killed_leaves_no_process_behind(tmp_path: Path):
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    command = [sys.executable, str(script), f"sqlite:///{tmp_path / 'ledger.db'}"]
    worker = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert worker.stdout is not None
    assert await worker.stdout.readline() == b"ready\n"
    children = psutil.Process(worker.pid).children(recursive=True)
    assert children
    worker.kill()
    await worker.wait()
    await until(lambda: not any(child.is_running() for child in children))


async def test_questions_do_not_wait_behind_what_takes_long(ledger_process: LedgerProcess, tmp_path: Path):
    aside = ledger_process.aside()
    assert ledger_process.aside() is aside
    running = asyncio.create_task(aside.run(write_for_ever, str(tmp_path / "mark")))
    await until((tmp_path / "mark").exists)
    assert await ledger_process.run(names) == []
    aside._patience = 0.1
    await ledger_process.close()
    await asyncio.wait([running])
    assert isinstance(running.exception(), BrokenProcessPool)


@pytest.mark.parametrize("error", [BlockingIOError(11, "no more processes"), EOFError()], ids=repr)
async def test_a_process_that_cannot_start_is_started_with_the_next_call(ledger_process, monkeypatch, error):
    """As where the machine has no process left: a caller is told to come again, and nothing stays behind."""
    start = Popen.__init__

    def refuse(self, process):
        monkeypatch.setattr(Popen, "__init__", start)
        raise error

    monkeypatch.setattr(Popen, "__init__", refuse)
    with pytest.raises(LedgerUnavailableError, match="cannot start"):
        await ledger_process.run(names)
    assert await ledger_process.run(names) == []


@pytest.mark.parametrize("turns", [0, 3])
async def test_a_worker_that_stops_while_the_process_starts_leaves_none_behind(tmp_path: Path, turns: int):
    others = {
        *multiprocessing.active_children()
    }  # of fixtures that outlive their module's tests on this worker
    opened = LedgerProcess(f"sqlite:///{tmp_path / 'ledger.db'}", patience=0.1)
    asking = [asyncio.create_task(opened.run(put, "x", at=1)) for _ in range(2)]
    for _ in range(turns):
        await asyncio.sleep(0.001)
    for task in asking:
        task.cancel()
    async with asyncio.timeout(PATIENCE_S):
        await opened.close()
        await asyncio.wait(asking)
    assert {*multiprocessing.active_children()} <= others
    with pytest.raises(BrokenProcessPool):
        await opened.run(put, "y", at=1)
    assert {*multiprocessing.active_children()} <= others

"""The road from the meter to the ledger under fire: kill -9, a database that is away, several workers."""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import textwrap
from contextlib import suppress
from pathlib import Path

import pytest
from sqlalchemy import func, select

from gateway.metering.ledger.database import LedgerUnavailableError
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import quarantine
from gateway.metering.meter import Meter
from gateway.metering.wal.segments import WorkerDirectory
from gateway.observability.metrics import Metrics
from tests.support.forking import FORKED
from tests.support.forms import some_of
from tests.support.waiting import until
from tests.unit.gateway.metering.make import intent, record

ROOT = Path(__file__).resolve().parents[2]

WORKER = FORKED + textwrap.dedent("""
    import asyncio, json, os, random, sys
    from pathlib import Path
    from gateway.metering.ledger.ledger import Ledger
    from gateway.metering.meter import Meter
    from gateway.metering.records import Outcome
    from gateway.observability.metrics import Metrics

    root, url, name, count = sys.argv[1:]

    async def attempt(meter, number):
        made = meter.begin(
            request_id=f"{name}-{number}", attempt=1, tenant="acme", key_id="k", adapter="acme/support",
            version="v1", base_model="base", engine="gpu-a", gpu_type="H100", gpu_count=1, n=1)
        made.first_token()
        for tokens in range(1, 4):
            made.observe(10, tokens, None, 0)
            await asyncio.sleep(random.uniform(0, 0.01))
        made.end(Outcome.OK, billable=True, exact=True)
        await made.logged()
        return number

    async def main():
        meter = Meter(Path(root), Ledger(url), Metrics(), segment_bytes=20_000)
        await meter.start()
        hanging = meter.begin(
            request_id=f"{name}-hanging", attempt=1, tenant="acme", key_id="k", adapter="acme/support",
            version="v1", base_model="base", engine="gpu-a", gpu_type="H100", gpu_count=1, n=1)
        hanging.observe(10, 7, None, 0)
        number = 0
        while count == "endless" or number < int(count):
            batch = await asyncio.gather(*(attempt(meter, number + i) for i in range(20)))
            number += 20
            print(json.dumps(batch), flush=True)  # their clients have heard the end
        hanging.end(Outcome.CLIENT_ABORT, billable=True, exact=False)
        await meter.close()

    asyncio.run(main())
""")


def start(root, url, name, count):
    return subprocess.Popen(
        [sys.executable, "-c", WORKER, str(root), url, name, str(count)], stdout=subprocess.PIPE, text=True
    )


@pytest.fixture
def root(tmp_path):
    return tmp_path / "usage"


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path / 'ledger.db'}"


@pytest.fixture
def ledger(url):
    made = Ledger(url)
    yield made
    made.close()


def everything(ledger):
    return ledger.usage(start=0, end=2**62, limit=100_000)


async def until_adopted(root, meter):
    """Only the meter's own directory is left."""
    await until(lambda: shipped(meter))
    await until(lambda: len(list(root.iterdir())) == 1)


async def shipped(meter):
    """Whether everything is; a process that dies may leave the database locked for a moment."""
    with suppress(LedgerUnavailableError):
        return await meter.flush()


@pytest.mark.parametrize("batches", some_of(["1", "4", "15"], "4"))
async def test_kill_9_loses_no_completed_request(root, url, ledger, batches):
    worker = start(root, url, "victim", "endless")
    acknowledged = set()
    try:
        for _ in range(int(batches)):
            acknowledged.update(json.loads(worker.stdout.readline()))
    finally:
        os.kill(worker.pid, signal.SIGKILL)
        worker.wait(30)
    for line in worker.stdout:  # printed before the kill, not yet read
        if line.endswith("]\n"):
            acknowledged.update(json.loads(line))
    worker.stdout.close()

    heir = Meter(root, ledger, Metrics())
    await heir.start()
    await until_adopted(root, heir)
    await heir.close()

    rows = everything(ledger)
    finished = {r.request_id for r in rows if r.outcome == "ok"}
    assert {f"victim-{n}" for n in acknowledged} <= finished
    assert len({r.id for r in rows}) == len(rows)
    assert all(r.completion_tokens == 3 for r in rows if r.outcome == "ok")
    [hanging] = [r for r in rows if r.request_id == "victim-hanging"]
    assert (hanging.outcome, hanging.billable) == ("orphaned", False)
    assert list(root.iterdir()) == []


FULL = FORKED + textwrap.dedent("""
    import asyncio, resource, sys
    from pathlib import Path
    from gateway.metering.ledger.ledger import Ledger
    from gateway.metering.meter import Meter
    from gateway.metering.records import Outcome
    from gateway.observability.metrics import Metrics

    root, url = sys.argv[1:]

    async def attempts(meter, name):
        for number in range(10):
            made = meter.begin(
                request_id=f"{name}-{number}", attempt=1, tenant="acme", key_id="k", adapter="", version="",
                base_model="base", engine="e", gpu_type="H100", gpu_count=1, n=1)
            await made.logged()
            made.end(Outcome.OK, billable=True, exact=True)
            await made.logged()

    async def until_accepting(meter, accepting):
        async with asyncio.timeout(60):
            while meter.accepting is not accepting:
                await asyncio.sleep(0.01)

    async def main():
        meter = Meter(Path(root), Ledger(url), Metrics())
        await meter.start()
        await attempts(meter, "before")
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))  # each write fails: EFBIG
        await attempts(meter, "full")
        assert not meter.accepting
        await asyncio.sleep(1.2)  # it tries again and again
        await attempts(meter, "still-full")
        assert not meter.accepting
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        await until_accepting(meter, True)
        await attempts(meter, "after")
        sys.stdout.write("done\\n")
        sys.stdout.flush()
        await asyncio.sleep(3600)

    asyncio.run(main())
""")


def fill_the_disk(root, url):
    """What the worker said, and its log."""
    with subprocess.Popen(
        [sys.executable, "-c", FULL, str(root), url],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as worker:
        said = worker.stdout.readline()
        worker.kill()
        return said, worker.stderr.read()


async def test_a_disk_that_was_full_has_lost_nothing(root, url, ledger):
    """It refuses, recovers by itself, and even `kill -9` right afterwards finds everything in the log."""
    said, errors = await asyncio.to_thread(fill_the_disk, root, url)
    assert said == "done\n", errors
    assert errors.count("held in memory") == 1
    assert "writable again" in errors
    heir = Meter(root, ledger, Metrics())
    await heir.start()
    await until_adopted(root, heir)
    await heir.close()
    names = ("before", "full", "still-full", "after")
    assert {r.request_id for r in everything(ledger)} == {f"{n}-{i}" for n in names for i in range(10)}
    assert {r.outcome for r in everything(ledger)} == {"ok"}


SHIP = FORKED + textwrap.dedent("""
    import signal, sys
    from pathlib import Path
    from gateway.metering.ledger.ledger import Ledger
    from gateway.metering.wal.segments import WorkerDirectory
    from gateway.metering.wal.shipper import Shipper
    from gateway.observability.metrics import Metrics
    from tests.unit.gateway.metering.make import LogStub

    root, url, life = sys.argv[1:]
    mine = WorkerDirectory.create(Path(root))
    ledger = Ledger(url)
    shipper = Shipper(Path(root), mine, LogStub(), ledger, Metrics())
    signal.setitimer(signal.ITIMER_PROF, float(life))  # of a processor: then it is gone at once, as by `kill -9`
    while not shipper.flush_now(patience=60):
        pass
    shipper.start()
    shipper.close()
    signal.setitimer(signal.ITIMER_PROF, 0)  # it ends as it says
    print("done", flush=True)
""")


def test_a_shipper_that_is_killed_at_any_moment_ships_each_record_once(root, url, ledger):
    count, parts = 8_000, 4
    directory = WorkerDirectory.create(root, "dead")
    for part in range(parts):
        numbers = range(part, count, parts)
        lines = [record(f"r{n}").line() for n in numbers] + [intent(f"open-{part}").line()]
        directory.segment(part + 1).write_bytes(b"".join(lines))
    directory.release()
    assert everything(ledger) == []  # the tables are there
    killed, last = 0, ""
    while last != "done\n":
        life = random.uniform(0.001, 0.1 * (killed + 1)) if killed < 5 else 0
        with subprocess.Popen(
            [sys.executable, "-c", SHIP, str(root), url, str(life)],
            stdout=subprocess.PIPE, text=True, cwd=ROOT,
        ) as process:  # fmt: skip
            last = process.stdout.read()
        assert process.returncode == (0 if last else -signal.SIGPROF)
        killed += not last
    assert killed
    rows = everything(ledger)
    expected = {f"r{n}" for n in range(count)} | {f"open-{part}" for part in range(parts)}
    assert len(rows) == len(expected)
    assert {r.request_id for r in rows} == expected
    with ledger.read() as connection:
        assert connection.execute(select(func.count()).select_from(quarantine)).scalar() == 0
    assert list(root.iterdir()) == []


async def test_two_workers_on_one_sqlite(root, url, ledger):
    workers = [start(root, url, name, 300) for name in ("one", "two")]
    for worker in workers:
        output, _ = worker.communicate(timeout=120)
        assert worker.returncode == 0
        assert len(output.splitlines()) == 15
    heir = Meter(root, ledger, Metrics())  # of what one of them could not ship in its last seconds
    await heir.start()
    await until_adopted(root, heir)
    await heir.close()
    rows = everything(ledger)
    assert len(rows) == len({r.id for r in rows}) == 2 * 301
    assert {r.outcome for r in rows} == {"ok", "client_abort"}
    assert list(root.iterdir()) == []

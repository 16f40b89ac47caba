"""The road from the meter to the ledger under fire: kill -9, a database that is away, several workers."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time

import pytest

from gateway.metering.ledger import Ledger, LedgerUnavailableError
from gateway.metering.meter import Meter
from gateway.metering.records import Outcome
from gateway.metrics import Metrics

WORKER = textwrap.dedent("""
    import asyncio, json, os, random, sys
    from pathlib import Path
    from gateway.metering.ledger import Ledger
    from gateway.metering.meter import Meter
    from gateway.metering.records import Outcome
    from gateway.metrics import Metrics

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
            await asyncio.to_thread(meter._wal.flush)
            print(json.dumps(batch), flush=True)  # these are acknowledged: on disk
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
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        await meter.flush()
        if len(list(root.iterdir())) == 1:
            return
    raise AssertionError("the dead worker's log was not adopted")


@pytest.mark.parametrize("batches", [1, 15])
async def test_kill_9_loses_nothing_that_was_on_disk(root, url, ledger, batches):
    worker = start(root, url, "victim", "endless")
    acknowledged = set()
    try:
        for _ in range(batches):
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


async def test_two_workers_on_one_sqlite(root, url, ledger):
    workers = [start(root, url, name, 300) for name in ("one", "two")]
    for worker in workers:
        output, _ = worker.communicate(timeout=120)
        assert worker.returncode == 0
        assert len(output.splitlines()) == 15
    rows = everything(ledger)
    assert len(rows) == len({r.id for r in rows}) == 2 * 301
    assert {r.outcome for r in rows} == {"ok", "client_abort"}
    assert list(root.iterdir()) == []


async def test_the_database_may_be_away_for_a_while(root, url, ledger, tmp_path):
    meter = Meter(root, ledger, Metrics(), segment_bytes=20_000)
    ledger.insert([])
    assert everything(ledger) == []
    locker = sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)
    locker.execute("BEGIN EXCLUSIVE")
    await meter.start()
    for number in range(500):
        meter.begin(
            request_id=f"r{number}", attempt=1, tenant="acme", key_id="k", adapter="", version="",
            base_model="base", engine="e", gpu_type="H100", gpu_count=1, n=1,
        ).end(Outcome.OK, billable=True, exact=True)  # fmt: skip
    with pytest.raises(LedgerUnavailableError):
        await meter.flush()
    assert meter.accepting
    locker.execute("ROLLBACK")
    locker.close()
    await meter.flush()
    assert len(everything(ledger)) == 500
    await meter.close()


async def test_shipping_the_same_log_twice_counts_once(root, url, ledger, monkeypatch):
    """As if the note of how far it had come were lost each time."""
    from gateway.metering.segments import WorkerDirectory

    monkeypatch.setattr(WorkerDirectory, "save_cursor", lambda *_: None)
    monkeypatch.setattr(WorkerDirectory, "delete_before", lambda *_: None)
    meter = Meter(root, ledger, Metrics())
    await meter.start()
    for number in range(50):
        meter.begin(
            request_id=f"r{number}", attempt=1, tenant="acme", key_id="k", adapter="", version="",
            base_model="base", engine="e", gpu_type="H100", gpu_count=1, n=1,
        ).end(Outcome.OK, billable=True, exact=True)  # fmt: skip
    for _ in range(3):
        await meter.flush()
    await meter.close()
    assert len(everything(ledger)) == 50
    samples = meter._metrics.registry
    assert samples.get_sample_value("florin_usage_records_total", {"result": "shipped"}) == 50
    assert samples.get_sample_value("florin_usage_records_total", {"result": "quarantined"}) is None

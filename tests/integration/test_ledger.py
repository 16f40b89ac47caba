"""The road from the log to the ledger under `kill -9`; tests/integration/test_metering_under_fire.py has whole gateways."""

import random
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from sqlalchemy import func, select

from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import quarantine
from gateway.metering.wal.segments import WorkerDirectory
from tests.support.forking import FORKED
from tests.unit.gateway.metering.make import intent, record

ROOT = Path(__file__).resolve().parents[2]


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

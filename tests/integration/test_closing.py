"""Closing a month under `kill -9`: whenever it dies, closing again leads to the same root."""

import random
import signal
import subprocess
import sys
import textwrap
import time

import pytest
from sqlalchemy import func, select

from gateway.costs.closing.closing import GRACE, close
from gateway.costs.rollups.rollup import imbalance
from gateway.costs.verification.verify import verify
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import period_tenants, periods
from tests.unit.gateway.costs.month import DECEMBER, fill

NOW = DECEMBER + GRACE
CLOSER = textwrap.dedent("""
    import os, signal, sys
    from gateway.costs.closing import closing
    from gateway.metering.ledger.ledger import Ledger

    url, of, now, die_at = sys.argv[1:]

    def die(*_):
        os.kill(os.getpid(), signal.SIGKILL)

    def dying(name, after):
        whole = getattr(closing, name)

        def run(*args, **kwargs):
            if not after:
                die()
            whole(*args, **kwargs)
            die()

        setattr(closing, name, run)

    if "." in die_at:
        name, when = die_at.split(".")
        dying(name, when == "after")
    told = []
    def progress(doing, *_):
        told.append(doing)
        if die_at == doing:
            die()

    print("begun", flush=True)
    made = closing.close(Ledger(url), of, now=int(now), by="key", policy="even", progress=progress)
    print(made["root"], flush=True)
""")


def start(url, of, die_at):
    return subprocess.Popen(
        [sys.executable, "-c", CLOSER, url, of, str(NOW), die_at], stdout=subprocess.PIPE, text=True
    )


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """The roots of both months without any interruption."""
    ledger = Ledger(f"sqlite:///{tmp_path_factory.mktemp('whole') / 'ledger.db'}")
    fill(ledger)
    roots = [close(ledger, of, now=NOW, by="key", policy="even")["root"] for of in ("2026-10", "2026-11")]
    ledger.close()
    return roots


def test_killed_in_every_phase_and_at_random_moments(ledger, ledger_url, expected):
    fill(ledger)
    phases = ("_flush.after", "freeze.after", "_sum.before", "records", "compute_hash.after", "_commit.after")
    for phase in phases:
        process = start(ledger_url, "2026-10", phase)
        process.communicate(timeout=60)
        assert process.returncode == -signal.SIGKILL, phase
        with ledger.read() as connection:
            states = list(connection.execute(select(periods.c.state)).scalars())
            sealed = connection.execute(select(func.count()).select_from(period_tenants)).scalar_one()
        assert states == ([] if phases.index(phase) < 2 else ["closing"])
        assert sealed == 0
    assert close(ledger, "2026-10", now=NOW, by="key", policy="even")["root"] == expected[0]

    rng = random.Random(7)
    for _ in range(3):
        process = start(ledger_url, "2026-11", "")
        assert process.stdout.readline() == "begun\n"
        time.sleep(rng.uniform(0, 0.8))
        process.kill()
        process.communicate(timeout=60)
    process = start(ledger_url, "2026-11", "")
    out, _ = process.communicate(timeout=60)
    assert out.split() == ["begun", expected[1]]
    assert all(check.ok for v in verify(ledger) for check in v.checks)
    assert imbalance(ledger) == 0


def test_two_processes_at_once(ledger, ledger_url, expected):
    fill(ledger)
    processes = [start(ledger_url, "2026-10", "") for _ in range(2)]
    outs = [process.communicate(timeout=60)[0].split() for process in processes]
    assert outs == [["begun", expected[0]]] * 2
    assert all(check.ok for v in verify(ledger) for check in v.checks)

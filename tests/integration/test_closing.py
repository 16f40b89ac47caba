"""Closing a month under `kill -9`: whenever it dies, closing again leads to the same root."""

import multiprocessing
import random
import signal
import time
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

import pytest
from sqlalchemy import func, select

from gateway.costs.closing.closing import GRACE, close
from gateway.costs.rollups.rollup import imbalance
from gateway.costs.verification.chain_check import verify_chain
from gateway.costs.verification.verify import verify
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import period_tenants, periods
from tests.integration.closing_process import close_month
from tests.support.forms import LONG
from tests.unit.gateway.costs.month import DECEMBER, fill

NOW = DECEMBER + GRACE
PHASES = ("_flush.after", "freeze.after", "_sum.before", "records", "compute_hash.after", "_commit.after")
DEADLY = PHASES if LONG else ("freeze.after", "_commit.after")


def start(url: str, month: str, die_at: str = "") -> tuple[BaseProcess, Connection]:
    """A process that closes the month. It sends `begun`, and the root, unless it dies as `die_at` says."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=close_month, args=(theirs, url, month, NOW, die_at))
    process.start()
    theirs.close()
    assert ours.recv() == "begun"
    return process, ours


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """The roots of both months without any interruption."""
    ledger = Ledger(f"sqlite:///{tmp_path_factory.mktemp('whole') / 'ledger.db'}")
    fill(ledger)
    roots = [close(ledger, of, now=NOW, by="key", policy="even")["root"] for of in ("2026-10", "2026-11")]
    ledger.close()
    return roots


@pytest.mark.both_databases
def test_killed_in_several_phases(ledger, ledger_url, expected):
    fill(ledger)
    for phase in DEADLY:
        process, _ = start(ledger_url, "2026-10", phase)
        process.join()
        assert process.exitcode == -signal.SIGKILL, phase
        with ledger.read() as connection:
            states = list(connection.execute(select(periods.c.state)).scalars())
            sealed = connection.execute(select(func.count()).select_from(period_tenants)).scalar_one()
        assert states == ([] if phase in PHASES[:2] else ["closing"])
        assert sealed == 0
    assert close(ledger, "2026-10", now=NOW, by="key", policy="even")["root"] == expected[0]
    assert all(check.ok for v in (verify_chain(ledger), *verify(ledger)) for check in v.checks)
    assert imbalance(ledger) == 0


@pytest.mark.long
def test_killed_at_random_moments(ledger, ledger_url, expected):
    fill(ledger)
    close(ledger, "2026-10", now=NOW, by="key", policy="even")
    rng = random.Random(7)
    for _ in range(3):
        process, _ = start(ledger_url, "2026-11")
        time.sleep(rng.uniform(0, 0.8))
        process.kill()
        process.join()
    _, told = start(ledger_url, "2026-11")
    assert told.recv() == expected[1]
    assert all(check.ok for v in (verify_chain(ledger), *verify(ledger)) for check in v.checks)
    assert imbalance(ledger) == 0


@pytest.mark.both_databases
def test_two_processes_at_once(ledger, ledger_url, expected):
    fill(ledger)
    running = [start(ledger_url, "2026-10") for _ in range(2)]
    assert [told.recv() for _, told in running] == [expected[0]] * 2
    for process, _ in running:
        process.join()
    assert all(check.ok for v in (verify_chain(ledger), *verify(ledger)) for check in v.checks)

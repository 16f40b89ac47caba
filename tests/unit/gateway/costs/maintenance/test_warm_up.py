"""The ledger process starts before the first report."""

import asyncio

import pytest

from gateway.costs.maintenance import warm_up
from gateway.costs.maintenance.ledger_process import LedgerProcess
from gateway.metering.ledger.database import LedgerUnavailableError
from gateway.units import HOUR


class InThisProcess(LedgerProcess):
    def __init__(self, ledger):
        super().__init__("sqlite://")
        self.ledger, self.began, self.reports = ledger, asyncio.Event(), []

    async def run(self, function, *args):
        self.began.set()
        if self.ledger is None:
            raise LedgerUnavailableError("away")
        self.reports.append(function(self.ledger, *args))


@pytest.mark.parametrize("away", [False, True])
async def test_one_report_and_no_error_ends_the_task(ledger, away, monkeypatch):
    monkeypatch.setattr(warm_up, "DELAY_SECONDS", 0.0)
    process = InThisProcess(None if away else ledger)
    task = asyncio.create_task(warm_up.warm_up(process, lambda: 500_000 * HOUR))
    await process.began.wait()
    done, _ = await asyncio.wait([task], timeout=0)
    assert not done
    assert len(process.reports) == (not away)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

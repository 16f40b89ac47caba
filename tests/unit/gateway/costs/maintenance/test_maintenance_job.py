import asyncio
from concurrent.futures.process import BrokenProcessPool

import pytest

from adapters.store.leader_job import PassFailedError
from gateway.composition.background import cancel_task
from gateway.costs.maintenance.health import LATE, health
from gateway.costs.maintenance.maintenance_job import METRICS, Maintenance, maintain, read_figures, show
from gateway.costs.maintenance.snapshot import read_snapshot, write_snapshot
from gateway.metering.ledger.database import LedgerUnavailableError
from gateway.observability.computed_metrics import LedgerFigures
from gateway.observability.metrics import Metrics
from gateway.units import HOUR
from tests.support.waiting import until
from tests.unit.gateway.metering.make import record

T = 500_000 * HOUR


# -- a pass


def test_a_pass_rolls_up_and_leaves_figures_for_every_worker(ledger):
    ledger.insert([record(dispatched=T, ended=T + 36_000_000)])
    assert read_figures(ledger, after=-1) is None
    maintain(ledger, T + HOUR, 400)
    figures = read_figures(ledger, after=-1)
    assert figures.at == T + HOUR
    assert dict(map(_pair, figures.series["florin_gpu_busy_seconds_total"])) == {("gpu-a", "H100"): 36.0}
    assert figures.series["florin_ledger_imbalance_nano_gpu_hours"] == [[[], 0.0]]
    assert figures.series["florin_cost_total"] == []  # there is no price
    assert read_figures(ledger, after=T + HOUR) is None


def test_counters_do_not_run_backwards_when_the_sums_do(ledger):
    name = "florin_gpu_busy_seconds_total"
    before = LedgerFigures(1, {name: [(("a", "h"), 10.0), (("gone", "h"), 5.0)], "florin_cost_total": []})
    write_snapshot(ledger, METRICS, 1, before.document())
    now = LedgerFigures(2, {name: [(("a", "h"), 9.0), (("b", "h"), 1.0)], "florin_token_drift_ratio": [(("a", "input"), -1)]})  # fmt: skip
    kept = now.never_back(read_figures(ledger, after=0))
    assert kept.series[name] == [(("a", "h"), 10.0), (("b", "h"), 1.0), (("gone", "h"), 5.0)]
    assert kept.series["florin_token_drift_ratio"] == [(("a", "input"), -1)]
    assert kept.at == 2


def test_an_older_snapshot_does_not_take_the_place_of_a_newer(ledger):
    write_snapshot(ledger, "x", 2, {"n": 2})
    write_snapshot(ledger, "x", 1, {"n": 1})
    assert read_snapshot(ledger, "x") == {"n": 2}
    write_snapshot(ledger, "x", 3, {"n": 3})
    assert read_snapshot(ledger, "x") == {"n": 3}
    assert read_snapshot(ledger, "x", after=3) is None
    assert read_snapshot(ledger, "y") is None


async def test_every_worker_shows_what_was_found(ledger):
    metrics = [Metrics(), Metrics()]
    tasks = [asyncio.create_task(show(ledger, m, seconds=0.01)) for m in metrics]
    series = {"florin_cost_total": [(("acme/support", "h100", "USD", "usage"), 1.25)]}
    await asyncio.to_thread(write_snapshot, ledger, METRICS, 5, LedgerFigures(5, series).document())
    line = 'florin_cost_total{adapter="acme/support",bucket="usage",currency="USD",gpu_type="h100"} 1.25'
    await until(lambda: all(line in m.render().decode() for m in metrics))
    for task in tasks:
        await cancel_task(task)


async def test_a_ledger_that_is_away_leaves_the_last_figures_standing():
    class Away:
        reads = 0

        def read(self):
            self.reads += 1
            raise LedgerUnavailableError("away")

    metrics = Metrics()
    metrics.show_ledger_figures(LedgerFigures(1, {"florin_ledger_imbalance_nano_gpu_hours": [((), 0.0)]}))
    away = Away()
    task = asyncio.create_task(show(away, metrics, seconds=0.001))
    await until(lambda: away.reads > 3)
    assert not task.done()
    assert "florin_ledger_imbalance_nano_gpu_hours 0.0" in metrics.render().decode()
    await cancel_task(task)


def _pair(row):
    labels, value = row
    return tuple(labels), value


# -- what `florin doctor` sees of it


def test_a_ledger_that_is_no_longer_maintained_is_late(ledger):
    maintain(ledger, T, 0)
    assert not health(ledger, T + LATE, interval=30).late
    assert health(ledger, T + LATE + 1, interval=30).late
    assert not health(ledger, T + LATE + 1, interval=3600).late  # they are not meant to be kept so often


async def test_a_pass_that_fails_is_seen_until_one_succeeds(ledger):
    class Process:
        async def run(self, function, *args):
            return function(ledger, *args)

    maintain(ledger, T, 0)
    await Maintenance(Process(), 30, 0.3, lambda: T + 1).report("OverflowError: a sum")
    assert "OverflowError" in health(ledger, T + 2, interval=30).trouble
    assert await Maintenance(Process(), 30, 0.3, lambda: T + 3).work() >= 0.3
    assert health(ledger, T + 4, interval=30).trouble == ""


async def test_a_killed_process_is_no_defect():
    class Killed:
        async def run(self, *_):
            raise BrokenProcessPool("killed")

    with pytest.raises(PassFailedError, match="killed"):
        await Maintenance(Killed(), 30, 0.3).work()


def test_a_ledger_that_was_never_maintained_is_late_once_something_waits(ledger):
    ledger.insert([record("a")])
    hour = record("a").ended // HOUR * HOUR
    assert not health(ledger, hour + HOUR + LATE, interval=30).late
    assert health(ledger, hour + HOUR + LATE + 1, interval=30).late

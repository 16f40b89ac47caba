import asyncio
import logging
from concurrent.futures.process import BrokenProcessPool

import pytest

from gateway.costs.maintenance import maintenance_job
from gateway.costs.maintenance.health import LATE, LedgerHealth, health
from gateway.costs.maintenance.maintenance_job import METRICS, MaintenanceJob, maintain, read_figures, show
from gateway.costs.maintenance.snapshot import read_snapshot, write_snapshot
from gateway.metering.ledger.database import LedgerUnavailableError
from gateway.metering.ledger.engine_hours import HOUR
from gateway.observability.computed_metrics import LedgerFigures
from gateway.observability.metrics import Metrics
from tests.doubles.memory_store import MemoryStore
from tests.support.waiting import until
from tests.unit.gateway.metering.make import record

T = 500_000 * HOUR


class Store(MemoryStore):
    """Its clock stands still, so that no lease lapses by itself. Mutable: how often somebody wanted to lead."""

    def __init__(self, now=0):
        super().__init__(clock=lambda: self.now)
        self.now, self.looks = now, 0

    async def lead(self, *claim):
        self.looks += 1
        return await super().lead(*claim)

    async def looked_at(self):
        """Wait until the jobs have looked a few times more."""
        seen = self.looks
        await until(lambda: self.looks > seen + 3)


class LedgerProcessStub:
    """Runs nothing: remembers who asked, and fails as it is told to."""

    def __init__(self):
        self.asked = []
        self.done = 0
        self.noted = []
        self.errors = []
        self.seconds = 0.0

    async def run(self, function, *args):
        if function is write_snapshot:
            self.noted.append(args)
            raise LedgerUnavailableError("as everything")
        self.asked.append((function, args))
        await asyncio.sleep(self.seconds)
        self.done += 1
        if self.errors and (error := self.errors.pop(0)):
            raise error


def keeper(store, ledger_process, owner="w1", **options):
    defaults = {"interval": 0.01, "retention_days": 30, "look": 0.005, "clock": lambda: T}
    return MaintenanceJob(store, ledger_process, owner, **(defaults | options))


async def stop(task):
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


async def test_one_worker_leads_and_another_takes_over():
    store, first, second = Store(), LedgerProcessStub(), LedgerProcessStub()
    leader = asyncio.create_task(keeper(store, first).run())
    await until(lambda: first.asked)
    other = asyncio.create_task(keeper(store, second, "w2").run())
    seen = len(first.asked)
    await until(lambda: len(first.asked) > seen + 3)
    assert not second.asked
    await stop(leader)  # it resigns
    await until(lambda: second.asked)
    seen = len(first.asked)
    await until(lambda: len(second.asked) > 3)
    assert len(first.asked) == seen
    await stop(other)
    assert first.asked[0] == (maintain, (T, 30))


async def test_a_leader_that_died_is_followed_when_its_lease_lapses():
    store, ledger_process = Store(), LedgerProcessStub()
    assert await store.lead(maintenance_job.ROLE, "dead", maintenance_job.LEASE_MS)
    task = asyncio.create_task(keeper(store, ledger_process).run())
    await store.looked_at()
    assert not ledger_process.asked
    store.now += maintenance_job.LEASE_MS + 1
    await until(lambda: ledger_process.asked)
    await stop(task)


async def test_it_rests_twenty_times_as_long_as_it_worked(monkeypatch):
    monkeypatch.setattr(maintenance_job, "REST", 1_000_000_000)
    store, ledger_process = Store(), LedgerProcessStub()
    ledger_process.seconds = 0.01
    task = asyncio.create_task(keeper(store, ledger_process).run())
    await until(lambda: ledger_process.done)
    await store.looked_at()
    assert len(ledger_process.asked) == 1
    await stop(task)


async def test_it_does_not_rest_after_waiting_for_a_ledger_that_is_away(monkeypatch):
    """Otherwise a connection that times out after ten seconds delays maintenance by three minutes."""
    monkeypatch.setattr(maintenance_job, "REST", 1_000_000_000)
    store, ledger_process = Store(), LedgerProcessStub()
    ledger_process.seconds, ledger_process.errors = 0.01, [LedgerUnavailableError("away")]
    task = asyncio.create_task(keeper(store, ledger_process).run())
    await until(lambda: len(ledger_process.asked) >= 2)
    await stop(task)


async def test_trouble_is_said_once_and_survived(caplog):
    store, ledger_process = Store(), LedgerProcessStub()
    away, broken, defect = LedgerUnavailableError("away"), BrokenProcessPool("killed"), ValueError("a defect")
    ledger_process.errors = [away, away, broken, None, defect, defect, None]
    with caplog.at_level(logging.WARNING, "gateway.costs.maintenance.maintenance_job"):
        task = asyncio.create_task(keeper(store, ledger_process).run())
        await until(lambda: len(ledger_process.asked) >= 9)
        await stop(task)
    assert caplog.messages == [
        "Ledger maintenance failed: away Retrying.",
        "Ledger maintenance recovered.",
        "Ledger maintenance failed.",
        "Ledger maintenance recovered.",
    ]
    defects = ["ValueError('a defect')"] * 2
    assert [text for _, _, text in ledger_process.noted] == ["away", "away", "killed", *defects]


async def test_without_redis_nobody_leads_and_nothing_breaks():
    store, ledger_process = Store(), LedgerProcessStub()
    store.away = True
    task = asyncio.create_task(keeper(store, ledger_process).run())
    await store.looked_at()
    assert not ledger_process.asked
    store.away = False
    await until(lambda: ledger_process.asked)
    store.away = True
    await stop(task)


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
        await stop(task)


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
    await stop(task)


def _pair(row):
    labels, value = row
    return tuple(labels), value


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(maintenance_job, "FIRST_SECONDS", 0.0)


# -- what `florin doctor` sees of it


def test_a_ledger_that_is_maintained_is_healthy(ledger):
    ledger.insert([record("a")])
    maintain(ledger, T, 0)
    found = health(ledger, T + 60_000_000, interval=30)
    assert (found.last_pass, found.trouble, found.late, found.set_aside) == (T, "", False, 0)


def test_a_new_ledger_is_healthy(ledger):
    assert health(ledger, T, interval=30) == LedgerHealth(None, "", late=False, set_aside=0, first=None)


def test_a_ledger_that_is_no_longer_maintained_is_late(ledger):
    maintain(ledger, T, 0)
    assert not health(ledger, T + LATE, interval=30).late
    assert health(ledger, T + LATE + 1, interval=30).late
    assert not health(ledger, T + LATE + 1, interval=3600).late  # they are not meant to be kept so often


def test_a_ledger_that_was_never_maintained_is_late_once_something_waits(ledger):
    ledger.insert([record("a")])
    hour = record("a").ended // HOUR * HOUR
    assert not health(ledger, hour + HOUR + LATE, interval=30).late
    assert health(ledger, hour + HOUR + LATE + 1, interval=30).late


async def test_a_pass_that_fails_is_seen_until_one_succeeds(ledger, ledger_url):
    class Failing:
        async def run(self, function, *args):
            if function is maintain:
                raise OverflowError("a sum")
            function(ledger, *args)

    maintain(ledger, T, 0)
    await keeper(MemoryStore(), Failing(), clock=lambda: T + 1)._pass()
    assert "OverflowError" in health(ledger, T + 2, interval=30).trouble
    maintain(ledger, T + 3, 0)
    assert health(ledger, T + 4, interval=30).trouble == ""

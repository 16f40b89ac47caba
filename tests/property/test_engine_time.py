"""Whatever clocks do and whoever looks: no more of an engine's time is booked than passed, and where no clock is
wrong, all of it."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from sqlalchemy import select

from adapters.model import Engine
from gateway.costs.rollups.attribution import BRIDGED, union
from gateway.metering.engine_metrics import EngineSample
from gateway.metering.engine_time.engine_time import EngineTime
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import engine_spans
from gateway.runtime.clock import Clock
from tests.support.search import examples

S = 1_000_000
T = 500_000 * 3600 * S
_numbers = itertools.count()

seconds = st.integers(1, 2000)
offsets = st.sampled_from([0, 2, 7200, -3600, 86_400, -86_400])
acts = st.one_of(
    st.tuples(st.just("run"), seconds),
    st.tuples(st.just("pause"), seconds),
    st.tuples(st.sampled_from(["restart", "kill"]), seconds),
)
steps = st.tuples(st.just("step"), offsets, st.booleans())


class EngineTimeModel:
    """One engine that lives throughout, a host with some workers, and Redis on another."""

    def __init__(self, ledger: Ledger, folder: Path) -> None:
        number = next(_numbers)
        self.ledger = ledger
        self.path = folder / f"clock-{number}.json"
        self.engine = Engine(f"e{number}", "http://e", "base", "h100", 2, 8, registered=T)
        self.up = 1000 * S
        self.off = self.redis = 0
        self.begin = self.up
        self.workers = [self.worker(), self.worker()]

    def true(self) -> int:
        return T + self.up

    def worker(self) -> tuple[Clock, EngineTime]:
        clock = Clock(
            self.path, uptime=lambda: self.up, system=lambda: self.true() + self.off, boot="one", settle=100
        )
        worker = clock, EngineTime(self.ledger, f"w{next(_numbers)}", clock=clock)
        self.look(*worker)
        return worker

    def look(self, clock: Clock, time: EngineTime) -> None:
        clock.compare(
            {"system": self.true() + self.off - clock.now(), "redis": self.true() + self.redis - clock.now()}
        )
        now = clock.now()
        time.alive(self.engine, now, EngineSample(now, T + 900 * S, T + 950 * S, 1, 0, 1))
        if next(_numbers) % 7 == 0:
            assert time.write()

    def play(self, act: tuple) -> None:
        match act:
            case "run", length:
                for _ in range(0, length, 20):
                    self.up += min(20, length) * S
                    for worker in self.workers:
                        self.look(*worker)
            case "pause", length:  # both stopped, or the machine suspended
                self.up += length * S
            case "restart" | "kill", length:
                _, stopped = self.workers.pop()
                if act[0] == "restart":
                    assert stopped.write()
                self.up += length * S
                self.workers.insert(0, self.worker())
            case "step", off, redis:
                self.off = off * S
                if redis:
                    self.redis = off * S

    def booked(self) -> int:
        for _, time in self.workers:
            assert time.write()
        with self.ledger.read() as connection:
            table = engine_spans.c
            query = select(table.started, table.seen).where(table.engine == self.engine.name)
            spans = [tuple(row) for row in connection.execute(query)]
        return sum(end - start for start, end in union(spans, bridged=BRIDGED))


@pytest.fixture(scope="module")
def ledger(tmp_path_factory):
    made = Ledger(f"sqlite:///{tmp_path_factory.mktemp('ledger') / 'ledger.db'}")
    yield made
    made.close()


@examples(12, suppress=(HealthCheck.function_scoped_fixture,))
@given(sequence=st.lists(st.one_of(acts, steps), max_size=12))
def test_never_more_than_passed(ledger, tmp_path, sequence):
    world = EngineTimeModel(ledger, tmp_path)
    for act in sequence:
        world.play(act)
    assert world.booked() <= world.up - 900 * S


@examples(8, suppress=(HealthCheck.function_scoped_fixture,))
@given(sequence=st.lists(acts, max_size=12))
def test_all_of_it_where_no_clock_is_wrong(ledger, tmp_path, sequence):
    world = EngineTimeModel(ledger, tmp_path)
    for act in [*sequence, ("run", 1)]:
        world.play(act)
    assert world.booked() == world.up - 900 * S

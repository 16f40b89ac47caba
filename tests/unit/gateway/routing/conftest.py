from __future__ import annotations

from dataclasses import dataclass, field
from unittest.mock import AsyncMock

import pytest

from adapters.model import Engine
from adapters.registry.catalog import Catalog
from gateway.metering.engine_metrics import EngineSample
from gateway.observability.metrics import Metrics
from gateway.routing.engine_health import EngineHealth
from gateway.routing.engine_scraper import EngineScraper
from gateway.routing.pool import Pool
from gateway.routing.prober import Prober
from gateway.transport.engine_get import DatedConnection, EngineGetter
from gateway.transport.engine_pool import EnginePool
from loadtests.mock_engine import MockEngine
from tests.support.waiting import PATIENCE_S


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0
        self.step = 0.0
        """By which it moves whenever it is read."""

    def __call__(self) -> float:
        self.now += self.step
        return self.now


@dataclass
class ProbeObserverStub:
    """What the prober tells of engines' lives."""

    told: list[str] = field(default_factory=list)
    samples: list[EngineSample] = field(default_factory=list)

    def alive(self, engine: Engine, now: int, sample: EngineSample | None = None) -> None:
        assert now == 7
        self.told.append("alive")
        self.samples += [sample] if sample else []

    def missed(self, engine: Engine, now: int, *, down: bool) -> None:
        self.told.append("down" if down else "missed")

    def gone(self, name: str) -> None:
        self.told.append(f"gone {name}")


@dataclass
class ProberHarness:
    engine: MockEngine
    catalog: Catalog
    pool: Pool
    scraper: EngineScraper
    prober: Prober
    time: ProbeObserverStub
    elapsed: Clock
    metrics: Metrics


@pytest.fixture
async def world():
    async with MockEngine() as engine:
        catalog, time = Catalog(), ProbeObserverStub()
        catalog.engines["a"] = Engine("a", engine.url, "base", "h100", 2, 8)
        pool, metrics = Pool(catalog), Metrics()
        health = EngineHealth(pool)
        getter = EngineGetter(EnginePool(kind=DatedConnection))
        scraper = EngineScraper(health, getter, metrics, learned=AsyncMock(), clock=lambda: 7)
        elapsed = Clock()
        prober = Prober(
            pool, health, scraper, getter, metrics, time,
            interval=0.01, timeout=PATIENCE_S, clock=lambda: 7, elapsed=elapsed,
        )  # fmt: skip
        yield ProberHarness(engine, catalog, pool, scraper, prober, time, elapsed, metrics)
        getter.close()

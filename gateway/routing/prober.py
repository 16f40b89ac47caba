"""Probes engines' health."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Callable
from typing import Protocol

import aiohttp

from adapters.drivers import driver_of
from adapters.model import Engine
from adapters.security.handshake_errors import explain
from gateway.metering.engine_metrics import EngineSample
from gateway.observability.metrics import Metrics
from gateway.routing.engine_health import EngineHealth
from gateway.routing.engine_scraper import EngineScraper
from gateway.routing.engine_state import EngineState
from gateway.routing.pool import Pool
from gateway.runtime.clock import system_time

log = logging.getLogger(__name__)

METRICS_EVERY = 3
"""Probes per scrape: rendering its metrics costs an engine's HTTP process about 6 ms."""

FINAL_PROBE_SECONDS = 0.5
LATE_SECONDS = 0.5
"""A timeout that fires so late says that this worker did not run meanwhile, and nothing about the engine."""


class ProbeObserver(Protocol):
    """Notified of each probe's result, to meter the engine's time. `now`: Unix microseconds."""

    def alive(self, engine: Engine, now: int, sample: EngineSample | None = None) -> None: ...

    def missed(self, engine: Engine, now: int, *, down: bool) -> None: ...

    def gone(self, name: str) -> None: ...


class Prober:
    """Probes each registered engine in a task of its own, reports the results, and has its metrics scraped at
    every third probe, and whenever it may have restarted: they identify its process."""

    def __init__(
        self,
        pool: Pool,
        health: EngineHealth,
        scraper: EngineScraper,
        session: aiohttp.ClientSession,
        metrics: Metrics,
        observer: ProbeObserver,
        *,
        interval: float,
        timeout: float,
        clock: Callable[[], int] = system_time,
        elapsed: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clock`: Unix microseconds. `elapsed`: seconds."""
        self._pool = pool
        self._health = health
        self._scraper = scraper
        self._session = session
        self._metrics = metrics
        self._observer = observer
        self._clock = clock
        self._elapsed = elapsed
        self.reconfigure(interval=interval, timeout=timeout)
        self._watched: dict[str, tuple[asyncio.Task[None], EngineState]] = {}
        """Mutable: the tasks."""

    def reconfigure(self, *, interval: float, timeout: float) -> None:
        self._interval, self._timeout = interval, aiohttp.ClientTimeout(total=timeout)

    async def run(self) -> None:
        """Probe every registered engine until cancelled."""
        try:
            while True:
                states = {s.engine.name: s for s in self._pool.states() if not s.engine.stopped}
                for name, (task, state) in list(self._watched.items()):
                    if states.get(name) is not state:
                        del self._watched[name]
                        task.cancel()
                        self._metrics.forget_engine(name, state.engine.gpu_type)
                        self._observer.gone(name)
                        self._scraper.forget(name)
                for name, state in states.items():
                    if name not in self._watched:
                        task = asyncio.create_task(self._watch(state), name=f"probe {name}")
                        self._watched[name] = (task, state)
                await asyncio.sleep(min(0.25, self._interval))
        finally:
            tasks = [task for task, _ in self._watched.values()]
            self._watched.clear()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def final_probe(self) -> None:
        """Probe once more after the last request, so that the sampled counters include its tokens. Gives
        up on engines that do not answer quickly."""
        healthy = [state for state in self._pool.states() if state.healthy]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FINAL_PROBE_SECONDS):
                await asyncio.gather(*(self.probe(state) for state in healthy), return_exceptions=True)

    async def _watch(self, state: EngineState) -> None:
        for count in itertools.count():
            state.wake.clear()
            try:
                busy_or_doubtful = state.waiting > 0 or state.doubtful or state.suspect or not state.healthy
                wanted, state.scrape_wanted = state.scrape_wanted, False
                await self.probe(state, scrape=wanted or busy_or_doubtful or count % METRICS_EVERY == 0)
            except Exception:  # without probes, a suspect engine would never be used again
                log.exception("Engine %s: probe failed unexpectedly", state.engine.name)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._interval):  # wait_for can swallow a cancellation
                    await state.wake.wait()

    async def probe(self, state: EngineState, *, scrape: bool = True) -> None:
        """Probe the engine once. An engine is up if its health check and, with `scrape`, its metrics are
        answered."""
        engine, health = state.engine, self._health
        up, sample = False, None
        path = driver_of(engine).health_path
        begun, patience = self._elapsed(), self._timeout.total or 0.0
        try:
            async with self._session.get(
                engine.url + path, timeout=self._timeout, allow_redirects=False
            ) as response:
                status = response.status
            if status == 200:
                if scrape:
                    sample = await self._scraper.scrape(state, self._timeout)
                health.mark_up(state)
                up = True
            else:
                health.mark_down(state, f"{path} returned {status}")
        except TimeoutError:
            if self._elapsed() - begun > patience + LATE_SECONDS:
                log.warning("Engine %s: probe ignored, because this worker was blocked", engine.name)
                return
            health.probe_timed_out(state, f"{path} timed out")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            health.mark_down(state, f"{path}: {explain(error, engine.url) or error}")
        if up:
            self._observer.alive(engine, self._clock(), sample)
        else:
            self._observer.missed(engine, self._clock(), down=state.healthy is False)
        self._metrics.engine_up(engine.name, engine.gpu_type, up=state.healthy is True)

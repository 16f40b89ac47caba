"""Probes engines' health."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import random
import time
from collections.abc import Callable
from typing import Protocol

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
from gateway.transport.engine_get import EngineGetter

log = logging.getLogger(__name__)

METRICS_EVERY = 3
"""Probes per scrape of an engine in use: rendering its metrics costs its HTTP process about 6 ms."""
QUIET_EVERY = 15
"""Probes per scrape of an engine that nobody has used for QUIET_SECONDS."""
QUIET_SECONDS = 30.0
MOST_HEALTH_BYTES = 64 * 1024

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
    every third probe while it is in use, and whenever it may have restarted: they identify its process."""

    def __init__(
        self,
        pool: Pool,
        health: EngineHealth,
        scraper: EngineScraper,
        getter: EngineGetter,
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
        self._getter = getter
        self._metrics = metrics
        self._observer = observer
        self._clock = clock
        self._elapsed = elapsed
        self.reconfigure(interval=interval, timeout=timeout)
        self._watched: dict[str, tuple[asyncio.Task[None], EngineState]] = {}
        """Mutable: the tasks."""
        self._reported: dict[str, bool] = {}
        """Mutable: which engines the metrics show as up."""

    def reconfigure(self, *, interval: float, timeout: float) -> None:
        self._interval, self._timeout = interval, timeout

    async def run(self) -> None:
        """Probe every registered engine until cancelled."""
        try:
            while True:
                states = {s.engine.name: s for s in self._pool.states() if not s.engine.stopped}
                for name, (task, state) in list(self._watched.items()):
                    if states.get(name) is not state:
                        del self._watched[name]
                        task.cancel()
                        self._reported.pop(name, None)
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
        loop = asyncio.get_running_loop()
        pause = self._interval * random.random()  # noqa: S311 - so that a fleet is not probed all at once
        unscraped: float = math.inf
        while True:
            state.wake.clear()
            try:
                requested, state.scrape_wanted = state.scrape_wanted, False
                scrape = requested or unscraped + 1 >= self._scrape_every(state)
                unscraped = 0 if await self.probe(state, scrape=scrape) else unscraped + 1
            except Exception:  # without probes, a suspect engine would never be used again
                log.exception("Engine %s: probe failed unexpectedly", state.engine.name)
            timer = loop.call_later(pause, state.wake.set)
            try:
                await state.wake.wait()
            finally:
                timer.cancel()
            pause = self._interval

    def _scrape_every(self, state: EngineState) -> int:
        """Probes per scrape."""
        if state.waiting > 0 or state.doubtful or state.suspect or not state.healthy:
            return 1
        return QUIET_EVERY if state.quiet_for(self._elapsed()) > QUIET_SECONDS else METRICS_EVERY

    async def probe(self, state: EngineState, *, scrape: bool = True) -> bool:
        """Probe the engine once. It is up if its health check and, with `scrape`, its metrics are answered.
        They are read, too, if the connection that was kept is gone. Returns whether they were."""
        engine, health = state.engine, self._health
        up, sample = False, None
        path = driver_of(engine).health_path
        begun, timeout = self._elapsed(), self._timeout
        try:
            answer = await self._getter.get(engine.url, path, timeout=timeout, limit=MOST_HEALTH_BYTES)
            state.connections += answer.fresh
            if answer.status == 200:
                scrape = scrape or answer.fresh
                if scrape:
                    sample = await self._scraper.scrape(state, timeout)
                health.mark_up(state)
                up = True
            else:
                health.mark_down(state, f"{path} returned {answer.status}")
        except TimeoutError:
            if self._elapsed() - begun > timeout + LATE_SECONDS:
                log.warning("Engine %s: probe ignored, because this worker was blocked", engine.name)
                return False
            health.probe_timed_out(state, f"{path} timed out")
        except (OSError, ValueError) as error:
            health.mark_down(state, f"{path}: {explain(error, engine.url) or error}")
        if up:
            self._observer.alive(engine, self._clock(), sample)
        else:
            self._observer.missed(engine, self._clock(), down=state.healthy is False)
        healthy = state.healthy is True
        if self._reported.get(engine.name) is not healthy:
            self._reported[engine.name] = healthy
            self._metrics.engine_up(engine.name, engine.gpu_type, up=healthy)
        return up and scrape

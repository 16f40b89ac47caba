"""Probes engines' health."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from adapters.drivers import driver_of
from adapters.model import Engine
from adapters.security.handshake_errors import explain
from gateway.metering.engine_metrics import EngineSample
from gateway.observability.metrics import Metrics
from gateway.routing.engine_health import EngineHealth
from gateway.routing.engine_scraper import EngineScraper
from gateway.routing.engine_state import EngineState, not_probed
from gateway.routing.pool import Pool
from gateway.runtime.clock import system_time
from gateway.runtime.timer_wheel import TimerWheel
from gateway.transport.engine_get import Answer, DatedConnection, EngineGetter

log = logging.getLogger(__name__)

METRICS_EVERY = 3
"""Probes per scrape of an engine in use: rendering its metrics costs its HTTP process about 6 ms."""
QUIET_EVERY = 15
"""Probes per scrape of an engine that nobody has used for QUIET_SECONDS."""
QUIET_SECONDS = 30.0
MOST_HEALTH_BYTES = 64 * 1024
MOST_LISTING_BYTES = 32 * 1024 * 1024
"""Bytes of an engine's list of models."""
WHEEL_SECONDS = 0.05
"""Probes that are due within this time are sent together: to wake up for each costs more than the probe. In
a fleet of a thousand engines, many more at once would hold up the events of streams."""
WHEEL_SHARE = 0.1
"""The same as a part of the interval, at most."""

FINAL_PROBE_SECONDS = 0.5
LATE_SECONDS = 0.5
"""A timeout that fires so late says that this worker did not run meanwhile, and nothing about the engine."""


class ProbeObserver(Protocol):
    """Notified of each probe's result, to meter the engine's time. `now`: Unix microseconds."""

    def alive(self, engine: Engine, now: int, sample: EngineSample | None = None) -> None: ...

    def missed(self, engine: Engine, now: int, *, down: bool) -> None: ...

    def gone(self, name: str) -> None: ...


@dataclass(slots=True, eq=False)
class _Watched:
    """An engine that is probed. Mutable."""

    state: EngineState
    spread: float = field(default_factory=random.random)
    """Part of the interval until the next probe: random at first, so that not all are probed at once."""
    unscraped: float = math.inf
    """Probes since its metrics were read."""
    probing: bool = False
    begun: float = 0.0
    """When the probe began, on `elapsed`."""
    again: bool = False
    """Another probe was requested meanwhile."""
    connection: DatedConnection | None = None
    """The answer is to come here; None: a task probes it, or nothing does."""
    task: asyncio.Task[None] | None = None
    stopped: bool = False


class Prober:
    """Probes each registered engine, reports the results, and has its metrics scraped at every third probe
    while it is in use, and whenever it may have restarted: they identify its process.

    A thousand engines are probed a thousand times a second, so the usual probe has neither a task nor a timer
    of its own: it goes to the connection that was kept, together with those of other engines, and the
    callback that receives the answer reports it. Connecting, scraping and failures take a task.
    """

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
        self._watched: dict[str, _Watched] = {}
        """Mutable: by the engine's name."""
        self._wheel: TimerWheel[_Watched]
        """Mutable: when each is probed, or has waited too long for the answer."""
        self._reported: dict[str, bool] = {}
        """Mutable: which engines the metrics show as up."""

    def reconfigure(self, *, interval: float, timeout: float) -> None:
        self._interval, self._timeout = interval, timeout

    async def run(self) -> None:
        """Probe every registered engine until cancelled."""
        self._wheel = TimerWheel(self._due, min(WHEEL_SECONDS, WHEEL_SHARE * self._interval))
        try:
            while True:
                states = {s.engine.name: s for s in self._pool.states() if not s.engine.stopped}
                for name, watched in list(self._watched.items()):
                    if states.get(name) is not watched.state:
                        del self._watched[name]
                        self._stop(watched)
                        self._reported.pop(name, None)
                        self._metrics.forget_engine(name, watched.state.engine.gpu_type)
                        self._observer.gone(name)
                        self._scraper.forget(name)
                for name, state in states.items():
                    if name not in self._watched:
                        self._watch(state)
                await asyncio.sleep(min(0.25, self._interval))
        finally:
            tasks = [self._stop(watched) for watched in self._watched.values()]
            self._watched.clear()
            self._wheel.close()
            await asyncio.gather(*filter(None, tasks), return_exceptions=True)

    async def final_probe(self) -> None:
        """Probe once more after the last request, so that the sampled counters include its tokens. Gives
        up on engines that do not answer quickly."""
        healthy = [state for state in self._pool.states() if state.healthy]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FINAL_PROBE_SECONDS):
                await asyncio.gather(*(self.probe(state) for state in healthy), return_exceptions=True)

    # -- when

    def _watch(self, state: EngineState) -> None:
        watched = self._watched[state.engine.name] = _Watched(state)
        state.probe_soon = partial(self._probe_soon, watched)
        self._begin(watched)

    def _stop(self, watched: _Watched) -> asyncio.Task[None] | None:
        """Returns its task, which ends."""
        watched.stopped, watched.state.probe_soon = True, not_probed
        self._wheel.remove(watched)
        if watched.connection is not None:
            watched.connection.close()
        if watched.task is not None:
            watched.task.cancel()
        return watched.task

    def _probe_soon(self, watched: _Watched) -> None:
        if watched.probing:
            watched.again = True
        else:
            self._begin(watched)

    def _due(self, watched: _Watched) -> None:
        if watched.connection is not None:
            watched.connection.give_up()
        else:
            self._begin(watched)

    def _begin(self, watched: _Watched) -> None:
        state, engine = watched.state, watched.state.engine
        watched.probing, watched.again, watched.begun = True, False, self._elapsed()
        requested, state.scrape_wanted = state.scrape_wanted, False
        scrape = requested or watched.unscraped + 1 >= self._scrape_every(state)
        if not scrape:
            watched.connection = self._getter.ask(
                engine.url,
                driver_of(engine).health_path,
                limit=MOST_HEALTH_BYTES,
                done=partial(self._answered, watched),
            )
        if watched.connection is None:
            self._begin_task(watched, scrape=scrape)
        else:
            self._wheel.put(watched, self._timeout)

    def _begin_task(self, watched: _Watched, *, scrape: bool) -> None:
        self._wheel.remove(watched)
        name = f"probe {watched.state.engine.name}"
        watched.task = asyncio.create_task(self._run_task(watched, scrape=scrape), name=name)

    async def _run_task(self, watched: _Watched, *, scrape: bool) -> None:
        scraped = False
        try:
            scraped = await self.probe(watched.state, scrape=scrape)
        except Exception:  # without probes, a suspect engine would never be used again
            log.exception("Engine %s: probe failed unexpectedly", watched.state.engine.name)
        self._ended(watched, scraped=scraped)

    def _answered(self, watched: _Watched, outcome: Answer | Exception) -> None:
        watched.connection = None
        if watched.stopped:
            return
        if isinstance(outcome, Exception) and not isinstance(outcome, TimeoutError):
            self._begin_task(watched, scrape=False)  # the connection was gone; try another
            return
        try:
            self._report(watched.state, outcome, watched.begun)
        except Exception:  # as above
            log.exception("Engine %s: probe failed unexpectedly", watched.state.engine.name)
        self._ended(watched, scraped=False)

    def _ended(self, watched: _Watched, *, scraped: bool) -> None:
        watched.unscraped = 0 if scraped else watched.unscraped + 1
        watched.probing, watched.task = False, None
        if watched.again:
            self._begin(watched)
        else:
            self._wheel.put(watched, self._interval * watched.spread)
            watched.spread = 1.0

    def _scrape_every(self, state: EngineState) -> int:
        """Probes per scrape."""
        if state.waiting > 0 or state.doubtful or state.suspect or not state.healthy:
            return 1
        return QUIET_EVERY if state.quiet_for(self._elapsed()) > QUIET_SECONDS else METRICS_EVERY

    async def get(self, engine: Engine, path: str, timeout: float) -> tuple[int, bytes]:
        """Ask the engine something else over the connections that its probes use: see `EngineClient.get`."""
        answer = await self._getter.get(engine.url, path, timeout=timeout, limit=MOST_LISTING_BYTES)
        state = self._pool.state(engine.name)
        if answer.fresh and state is not None:  # as in a probe, which will not see it any more
            state.connections += 1
            state.scrape_wanted = True
        return answer.status, answer.body

    # -- a probe

    async def probe(self, state: EngineState, *, scrape: bool = True) -> bool:
        """Probe the engine once. It is up if its health check and, with `scrape`, its metrics are answered.
        They are read, too, if the connection that was kept is gone. Returns whether they were."""
        engine, sample = state.engine, None
        path = driver_of(engine).health_path
        begun, timeout = self._elapsed(), self._timeout
        outcome: Answer | Exception
        try:
            answer = await self._getter.get(engine.url, path, timeout=timeout, limit=MOST_HEALTH_BYTES)
            state.connections += answer.fresh
            scrape = scrape or answer.fresh
            if scrape and answer.status == 200:
                sample = await self._scraper.scrape(state, timeout)
            outcome = answer
        except (OSError, ValueError) as error:
            outcome = error
        return self._report(state, outcome, begun, sample) and scrape

    def _report(
        self,
        state: EngineState,
        outcome: Answer | Exception,
        begun: float,
        sample: EngineSample | None = None,
    ) -> bool:
        """Returns whether the engine is up."""
        engine, health = state.engine, self._health
        path = driver_of(engine).health_path
        up = isinstance(outcome, Answer) and outcome.status == 200
        if up:
            health.mark_up(state)
            self._observer.alive(engine, self._clock(), sample)
        else:
            if isinstance(outcome, Answer):
                health.mark_down(state, f"{path} returned {outcome.status}")
            elif not isinstance(outcome, TimeoutError):
                health.mark_down(state, f"{path}: {explain(outcome, engine.url) or outcome}")
            elif self._elapsed() - begun > self._timeout + LATE_SECONDS:
                log.warning("Engine %s: probe ignored, because this worker was blocked", engine.name)
                return False
            else:
                health.probe_timed_out(state, f"{path} timed out")
            self._observer.missed(engine, self._clock(), down=state.healthy is False)
        healthy = state.healthy is True
        if self._reported.get(engine.name) is not healthy:
            self._reported[engine.name] = healthy
            self._metrics.engine_up(engine.name, engine.gpu_type, up=healthy)
        return up

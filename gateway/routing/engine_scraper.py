"""Scrapes engines' metrics: their load, and the counters that engine time is billed by."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from email.utils import parsedate_to_datetime

from adapters.drivers import driver_of
from adapters.model import Engine, Unloads
from gateway.metering.engine_metrics import (
    MOST_BYTES,
    BadSampleError,
    EngineMetrics,
    EngineSample,
    kv_usage,
    mark,
    read_metrics,
    relevant_lines,
)
from gateway.observability.metrics import Metrics
from gateway.routing.engine_health import EngineHealth
from gateway.routing.engine_state import EngineState
from gateway.runtime.clock import TOLERANCE, system_time
from gateway.transport.engine_connection import ResponseTooLargeError
from gateway.transport.engine_get import EngineGetter

log = logging.getLogger(__name__)


class EngineScraper:
    """The prober calls `scrape`. An engine that reports impossible metrics loses only its own sample."""

    def __init__(
        self,
        health: EngineHealth,
        getter: EngineGetter,
        metrics: Metrics,
        *,
        learned: Callable[[Engine, Unloads], Awaitable[None]],
        clock: Callable[[], int] = system_time,
    ) -> None:
        """`learned`: told what an engine's unloads do; `clock`: Unix microseconds."""
        self._health = health
        self._getter = getter
        self._metrics = metrics
        self._learned = learned
        self._clock = clock
        self._refused: set[str] = set()
        """Mutable: engines whose last metrics were refused."""

    async def scrape(self, state: EngineState, timeout: float) -> EngineSample | None:
        """Update the engine's load, and return its counters; None: it has none, or refused ones. Raises what
        the getter raises, ValueError."""
        known = state.in_flight, state.in_flight_of_workers
        names = driver_of(state.engine).metrics
        try:
            answer = await self._getter.get(state.engine.url, names.path, timeout=timeout, limit=MOST_BYTES)
        except ResponseTooLargeError as error:
            self._health.record_counters(state, None)
            self._refuse(state, error)
            return None
        if answer.status != 200:
            self._health.record_counters(state, None)
            return None
        received = self._clock()
        skew = clock_skew(answer.date, received)
        counters = None
        try:
            lines = relevant_lines(answer.body, names=names)
            counters = mark(lines, names=names)
            reading = read_metrics(lines, received, skew=skew, names=names)
        except BadSampleError as error:
            self._refuse(state, error)
            return None
        finally:
            self._health.record_counters(state, counters)
        if state.engine.name in self._refused:
            log.warning("Engine %s: its metrics are taken again.", state.engine.name)
            self._refused.discard(state.engine.name)
        _record_load(state, reading, known)
        state.kv_usage = kv_usage(lines, names=names)
        state.process_seen((reading.sample and reading.sample.began) or 0)
        await self._compare(state, answer.body)
        return reading.sample

    async def _compare(self, state: EngineState, metrics: bytes) -> None:
        """Believe an engine that tells what it holds, and count how right the mirror was."""
        mirror, resident = state.view.mirror, driver_of(state.engine).residency(metrics)
        if mirror is None or resident is None:
            return
        comparison = mirror.told(resident)
        self._metrics.mirror_compared(state.engine.name, comparison.right, comparison.wrong)
        if comparison.unloads != "unknown":
            await self._learned(state.engine, comparison.unloads)

    def forget(self, engine: str) -> None:
        """The engine has left the registry."""
        self._refused.discard(engine)

    def _refuse(self, state: EngineState, error: Exception) -> None:
        state.running = state.waiting = 0
        state.kv_usage = None
        engine = state.engine.name
        self._metrics.sample_refused(engine)
        if engine not in self._refused:
            log.warning("Engine %s: its metrics are refused: %s.", engine, error)
        self._refused.add(engine)


def _record_load(state: EngineState, reading: EngineMetrics, known: tuple[int, int]) -> None:
    """`known`: this worker's and the other workers' requests there when the scrape began."""
    state.running, state.waiting = reading.running, reading.waiting
    state.scraped(reading.running, reading.waiting, *known)
    if reading.sample is not None:
        state.answer_speed.sampled(reading.sample, reading.running)


def clock_skew(date: str, now: int) -> int:
    """Microseconds by which the clock of the host that sent this date is ahead; 0: too few to matter."""
    try:
        host_time = int(parsedate_to_datetime(date).timestamp() * 1e6)
    except (ValueError, OverflowError):
        return 0
    return host_time - now if abs(host_time - now) > TOLERANCE else 0

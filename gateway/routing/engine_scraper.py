"""Scrapes engines' metrics: their load, and the counters that engine time is billed by."""

from __future__ import annotations

import logging
from collections.abc import Callable
from email.utils import parsedate_to_datetime

import aiohttp

from adapters.drivers import driver_of
from gateway.metering.engine_metrics import (
    MOST_BYTES,
    BadSampleError,
    EngineMetrics,
    EngineSample,
    kv_usage,
    mark,
    read_metrics,
)
from gateway.observability.metrics import Metrics
from gateway.routing.engine_health import EngineHealth
from gateway.routing.engine_state import EngineState
from gateway.runtime.clock import TOLERANCE, system_time

log = logging.getLogger(__name__)


class EngineScraper:
    """The prober calls `scrape`. An engine that reports impossible metrics loses only its own sample."""

    def __init__(
        self,
        health: EngineHealth,
        session: aiohttp.ClientSession,
        metrics: Metrics,
        *,
        clock: Callable[[], int] = system_time,
    ) -> None:
        """`clock`: Unix microseconds."""
        self._health = health
        self._session = session
        self._metrics = metrics
        self._clock = clock
        self._refused: set[str] = set()
        """Mutable: engines whose last metrics were refused."""

    async def scrape(self, state: EngineState, timeout: aiohttp.ClientTimeout) -> EngineSample | None:
        """Update the engine's load, and return its counters; None: it has none, or refused ones. Raises what
        the session raises, ValueError."""
        known = state.in_flight, state.in_flight_of_workers
        names = driver_of(state.engine).metrics
        async with self._session.get(
            state.engine.url + names.path, timeout=timeout, allow_redirects=False
        ) as response:
            if response.status != 200:
                self._health.record_counters(state, None)
                return None
            date, asked = response.headers.get("date", ""), self._clock()
            text = await _read(response)
        self._health.record_counters(state, mark(text, names=names))
        try:
            reading = read_metrics(text, self._clock(), skew=clock_skew(date, asked), names=names)
        except BadSampleError as error:
            self._refuse(state.engine.name, error)
            state.concurrency = state.running = state.waiting = 0
            state.kv_usage = None
            return None
        if state.engine.name in self._refused:
            log.warning("Engine %s: its metrics are taken again.", state.engine.name)
            self._refused.discard(state.engine.name)
        _record_load(state, reading, known)
        state.kv_usage = kv_usage(text, names=names)
        state.process_seen((reading.sample and reading.sample.began) or 0)
        return reading.sample

    def forget(self, engine: str) -> None:
        """The engine has left the registry."""
        self._refused.discard(engine)

    def _refuse(self, engine: str, error: BadSampleError) -> None:
        self._metrics.sample_refused(engine)
        if engine not in self._refused:
            log.warning("Engine %s: its metrics are refused: %s.", engine, error)
        self._refused.add(engine)


def _record_load(state: EngineState, reading: EngineMetrics, known: tuple[int, int]) -> None:
    """`known`: this worker's and the other workers' requests there when the scrape began."""
    state.concurrency = reading.running if reading.waiting and state.waiting else 0
    state.running, state.waiting = reading.running, reading.waiting
    state.scraped(reading.running, reading.waiting, *known)
    if reading.sample is not None:
        state.answer_speed.sampled(reading.sample, reading.running)


def clock_skew(date: str, now: int) -> int:
    """Microseconds by which the clock of the host that sent this date is ahead; 0: too few to matter."""
    try:
        told = int(parsedate_to_datetime(date).timestamp() * 1e6)
    except (ValueError, OverflowError):
        return 0
    return told - now if abs(told - now) > TOLERANCE else 0


async def _read(response: aiohttp.ClientResponse) -> bytes:
    """The body; if it is too long, slightly more than the limit."""
    text = bytearray()
    async for chunk in response.content.iter_chunked(65536):
        text += chunk
        if len(text) > MOST_BYTES:
            break
    return bytes(text)

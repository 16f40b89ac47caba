"""Health probes of engines, and what follows from them: health, load, billed time."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable
from email.utils import parsedate_to_datetime

import aiohttp

from adapters.security.tls import explain
from gateway.metering.engine_metrics import (
    MOST_BYTES,
    BadSampleError,
    EngineMetrics,
    EngineSample,
    mark,
    read_metrics,
)
from gateway.metering.engine_time import EngineTime
from gateway.observability.metrics import Metrics
from gateway.routing.pool import EngineState, Pool
from gateway.runtime.clock import TOLERANCE, system_time

log = logging.getLogger(__name__)

METRICS_EVERY = 3
"""Probes per scrape: rendering its metrics costs an engine's HTTP process about 6 ms."""

FINAL_PROBE_SECONDS = 0.5


class Prober:
    def __init__(
        self,
        pool: Pool,
        session: aiohttp.ClientSession,
        metrics: Metrics,
        engine_time: EngineTime,
        *,
        interval: float,
        timeout: float,
        clock: Callable[[], int] = system_time,
    ) -> None:
        """`clock`: Unix microseconds."""
        self._pool = pool
        self._session = session
        self._metrics = metrics
        self._engine_time = engine_time
        self._clock = clock
        self._interval = interval
        self._timeout = aiohttp.ClientTimeout(total=timeout)
        # Mutable state: the two above (`reconfigure`), and:
        self._watched: dict[str, tuple[asyncio.Task[None], EngineState]] = {}
        self._refused: set[str] = set()
        """Engines whose last metrics were refused."""

    def reconfigure(self, *, interval: float, timeout: float) -> None:
        self._interval, self._timeout = interval, aiohttp.ClientTimeout(total=timeout)

    async def run(self) -> None:
        """Probe every registered engine in a task of its own, until cancelled."""
        try:
            while True:
                states = {s.engine.name: s for s in self._pool.states() if not s.engine.stopped}
                for name, (task, state) in list(self._watched.items()):
                    if states.get(name) is not state:
                        del self._watched[name]
                        task.cancel()
                        self._metrics.forget_engine(name, state.engine.gpu_type)
                        self._engine_time.gone(name)
                        self._refused.discard(name)
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
                await self.probe(
                    state, scrape=count % METRICS_EVERY == 0 or state.doubtful or state.waiting > 0
                )
            except Exception:  # without probes, a suspect engine would never be used again
                log.exception("Engine %s: probe failed unexpectedly", state.engine.name)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._interval):  # wait_for can swallow a cancellation
                    await state.wake.wait()

    async def probe(self, state: EngineState, *, scrape: bool = True) -> None:
        engine = state.engine
        up, sample = False, None
        try:
            async with self._session.get(
                engine.url + "/health", timeout=self._timeout, allow_redirects=False
            ) as response:
                status = response.status
            if status == 200:
                if scrape:
                    sample = await self._scrape(state)
                self._pool.mark_up(state)
                up = True
            else:
                self._pool.mark_down(state, f"/health returned {status}")
        except TimeoutError:
            self._pool.probe_timed_out(state, "/health timed out")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            self._pool.mark_down(state, f"/health: {explain(error, engine.url) or error}")
        if up:
            self._engine_time.alive(engine, self._clock(), sample)
        else:
            self._engine_time.missed(engine, self._clock(), down=state.healthy is False)
        self._metrics.engine_up(engine.name, engine.gpu_type, up=state.healthy is True)

    async def _scrape(self, state: EngineState) -> EngineSample | None:
        """What it says of itself; None: nothing, or what cannot be. That costs the engine its sample and
        nobody else anything. Raises what the session raises, ValueError."""
        own, name = state.in_flight, state.engine.name
        async with self._session.get(
            state.engine.url + "/metrics", timeout=self._timeout, allow_redirects=False
        ) as response:
            if response.status != 200:
                return None
            said, asked = response.headers.get("date", ""), self._clock()
            text = await _read(response)
        self._pool.record_counters(state, mark(text))
        try:
            reading = read_metrics(text, self._clock(), skew=_skew(said, asked))
        except BadSampleError as error:
            self._metrics.sample_refused(name)
            if name not in self._refused:
                log.warning("Engine %s: its metrics are refused: %s.", name, error)
            self._refused.add(name)
            self._take_load(state, EngineMetrics(), own)
            return None
        if name in self._refused:
            log.warning("Engine %s: its metrics are taken again.", name)
            self._refused.discard(name)
        self._take_load(state, reading, own)
        state.process_started = (reading.sample and reading.sample.began) or 0
        return reading.sample

    def _take_load(self, state: EngineState, reading: EngineMetrics, own: int) -> None:
        state.concurrency = reading.running if reading.waiting and state.waiting else 0
        state.running, state.waiting = reading.running, reading.waiting
        state.in_flight_of_others = max(0, state.running + state.waiting - max(own, state.in_flight))


def _skew(date: str, now: int) -> int:
    """By how many microseconds the host whose answer has this date is ahead; 0: too little to matter."""
    try:
        said = int(parsedate_to_datetime(date).timestamp() * 1e6)
    except (ValueError, OverflowError):
        return 0
    return said - now if abs(said - now) > TOLERANCE else 0


async def _read(response: aiohttp.ClientResponse) -> bytes:
    """The body, or a little more of it than can be right: the rest is left to the engine."""
    text = bytearray()
    async for chunk in response.content.iter_chunked(65536):
        text += chunk
        if len(text) > MOST_BYTES:
            break
    return bytes(text)

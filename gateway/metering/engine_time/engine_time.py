"""When each engine was alive, and its own token counters: the basis of its GPU-hours and of reconciliation.

An engine reports when its process began and when it was ready. So no time is lost while the gateway is down
and the engine keeps running: the next probe writes the missing time. What a worker observes is kept in memory
and written every few seconds, or once the ledger is available again.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Protocol

from adapters.model import Engine
from gateway.metering.engine_metrics import EngineSample
from gateway.metering.engine_time.engine_life import BRIDGE, EngineLife, terms_of
from gateway.metering.engine_time.span_store import SampleKey, write_each
from gateway.metering.ledger.database import LedgerUnavailableError
from gateway.metering.ledger.ledger import Ledger
from gateway.units import HOUR

log = logging.getLogger("florin.metering")

WRITE_SECONDS = 10.0
_MOST = 10_000
"""Ended lives, and samples, that may wait for the ledger."""


class Timeline(Protocol):
    """What this needs of the clock that times are by: see `gateway.runtime.clock`."""

    @property
    def era(self) -> int: ...

    @property
    def since(self) -> int: ...


@dataclass(frozen=True, slots=True)
class SteadyTime:
    """The timeline of a clock that is never set."""

    era: int = 0
    since: int = 0


@dataclass(slots=True)
class EngineTime:
    """One per worker. The event loop reports what probes saw; a thread writes."""

    ledger: Ledger
    worker: str
    interval: float = WRITE_SECONDS
    clock: Timeline = field(default_factory=SteadyTime)
    # Mutable state, under the lock.
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _lives: dict[str, EngineLife] = field(default_factory=dict)
    _ended: list[EngineLife] = field(default_factory=list)
    _failed: dict[str, int] = field(default_factory=dict)
    _samples: dict[SampleKey, EngineSample] = field(default_factory=dict)
    # Mutable state of the writer.
    _writing: threading.Lock = field(default_factory=threading.Lock)
    _away: bool = False

    def __repr__(self) -> str:
        return f"<EngineTime {sorted(self._lives)} {len(self._ended)} to write>"

    def alive(self, engine: Engine, now: int, sample: EngineSample | None = None) -> None:
        """A probe succeeded. `sample`: the engine's metrics, if they were read."""
        with self._lock:
            life = self._lives.get(engine.name)
            if life is None or self._is_over(life, now) or life.restarted(sample):
                life = self._begin(engine, now)
            elif life.engine is not engine and terms_of(life.engine) != terms_of(engine):
                # The same process: keep its sample, which says when it began, so that no time is lost.
                before, life = life.sample, self._begin(engine, now)
                life.sample = before
            life.seen = max(life.seen, now)
            if sample is not None:
                life.sample = sample
                key = (engine.name, sample.began or -life.first, sample.at // HOUR * HOUR)
                self._samples[key] = sample
            self._forget_oldest()

    def missed(self, engine: Engine, now: int, *, down: bool) -> None:
        """A probe failed. `down`: so many failed in a row that the engine counts as dead."""
        with self._lock:
            self._failed[engine.name] = now
            if down:
                self._end(engine.name)

    def gone(self, name: str) -> None:
        """The engine was removed from the registry."""
        with self._lock:
            self._failed.pop(name, None)
            self._end(name)

    async def run(self) -> None:
        """Write until cancelled; then call `close`."""
        while True:
            await asyncio.sleep(self.interval)
            await asyncio.to_thread(self.write)

    async def close(self) -> None:
        await asyncio.to_thread(self.write)

    def write(self) -> bool:
        """Write what the ledger does not have yet, and drop what it cannot store. False if the ledger is
        unavailable; everything is kept then."""
        with self._writing:
            with self._lock:
                plan = [(life, life.seen) for life in (*self._ended, *self._lives.values()) if life.due]
                samples = dict(self._samples)
            try:
                begun = write_each(self.ledger, self.worker, plan, samples, self.clock.since)
            except LedgerUnavailableError as error:
                if not self._away:
                    log.warning("Ledger: %s Engine time is kept in memory.", error)
                self._away = True
                return False
            if self._away:
                log.warning("Ledger: engine time is being written again.")
            self._away = False
            with self._lock:
                for (life, seen), beginning in zip(plan, begun, strict=True):
                    life.refused = beginning is None
                    life.begun, life.written = beginning, seen
                self._ended = [life for life in self._ended if life.due]
                for key, sample in samples.items():
                    if self._samples.get(key) is sample:
                        del self._samples[key]
            return True

    def _is_over(self, life: EngineLife, now: int) -> bool:
        """Whether the last probe was too long ago, or the clock was set since the life began."""
        return now - life.seen > BRIDGE or life.era != self.clock.era

    def _begin(self, engine: Engine, now: int) -> EngineLife:
        self._end(engine.name)
        after = max((life.seen for life in self._ended if life.engine.name == engine.name), default=0)
        life = EngineLife(engine, now, self._failed.pop(engine.name, 0), after, now, self.clock.era)
        self._lives[engine.name] = life
        return life

    def _end(self, name: str) -> None:
        life = self._lives.pop(name, None)
        if life is not None:
            life.ended = True
            self._ended.append(life)

    def _forget_oldest(self) -> None:
        """Drop entries of the engine with the most, so that one that restarts all the time costs no other."""
        if len(self._ended) > _MOST or len(self._samples) > _MOST:
            log.error("Ledger unavailable for too long: dropping the oldest engine time.")
            lives = Counter(life.engine.name for life in self._ended)
            counters = Counter(key[0] for key in self._samples)
            most = {name for counts in (lives, counters) for name, _ in counts.most_common(1)}
            old = [life for life in self._ended if life.engine.name in most][: _MOST // 10]
            forgotten = set(map(id, old))
            self._ended = [life for life in self._ended if id(life) not in forgotten]
            for key in sorted((k for k in self._samples if k[0] in most), key=lambda k: k[2])[: _MOST // 10]:
                del self._samples[key]

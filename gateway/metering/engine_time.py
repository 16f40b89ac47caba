"""When each engine was alive, and how its own counters stood: what its GPU-hours are made of, and what the
records are held against.

An engine says when its process began, and when it was ready. So a gateway that was away loses nothing of an
engine that went on running: whoever looks next writes what nobody has written yet. What a worker learns is
kept in memory and written every few seconds; while the ledger is away, it waits.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from sqlalchemy import Connection, Table, func, select

from adapters.model import Engine
from gateway.metering.engine_metrics import EngineSample
from gateway.metering.ledger.database import REFUSALS, insert, is_definite
from gateway.metering.ledger.ledger import HOUR, EngineHour, Ledger, LedgerUnavailableError, mark_dirty
from gateway.metering.ledger.schema import engine_counters, engine_spans

log = logging.getLogger("florin.metering")

WRITE_SECONDS = 10.0
BRIDGE = 60_000_000
"""A shorter gap between two spans of an engine is none (the roll-up closes it); after a longer one without a
look, its being up now says nothing of the time between."""
_PATIENCE = 30_000_000
"""How long a life that has not told when it began waits for that, before it is written without."""
_MOST = 10_000
"""Ended lives, and counters, that wait for the ledger."""

SampleKey = tuple[str, int, int]
"""(engine, epoch, hour). An epoch below zero: when it was first seen, of an engine that does not say."""


class Timeline(Protocol):
    """What spans need to know of the clock by which their times are: see `gateway.runtime.clock`."""

    @property
    def era(self) -> int: ...

    @property
    def since(self) -> int: ...


@dataclass(frozen=True, slots=True)
class SteadyTime:
    """Of a clock that is never set."""

    era: int = 0
    since: int = 0


@dataclass(frozen=True, slots=True)
class Beginnings:
    """Start-up goes from `startup` to `ready`; `up` is later than `ready` where it was found away since."""

    startup: int
    ready: int
    up: int


def beginnings(
    *,
    first: int,
    failed: int,
    epoch: int | None,
    ready: int | None,
    registered: int,
    known: int,
    since: int = 0,
) -> Beginnings:
    """Since when an engine that was seen up at `first` is to be counted, and as what.

    `failed`: the last look before that found it away (0: there was none). `epoch`, `ready`: its own words.
    `registered`: since when it is ours (0: unknown). `known`: until when somebody has counted it (0: nobody
    has). `since`: times before it are by a clock that was set since, and cannot be compared. Nothing begins
    after `first`, whatever other hosts' clocks say."""
    if epoch is None or not registered:
        return Beginnings(first, first, first)
    alive = min(first, max(epoch, registered, known, since))
    if ready is None:
        unseen = known < epoch and (failed or epoch > registered)
        ready = first if unseen else alive
    ready = min(first, max(alive, ready))
    return Beginnings(alive, ready, min(first, max(ready, failed)))


@dataclass(slots=True, eq=False)
class _Life:
    """Mutable. One engine's life without a break, on one set of terms, as this worker saw it."""

    engine: Engine
    first: int
    failed: int
    after: int
    """Until when this worker has counted an earlier life of it."""
    seen: int
    era: int
    """Of the clock by which these times are."""
    sample: EngineSample | None = None
    """The latest."""
    ended: bool = False
    begun: Beginnings | None = None
    """None: not written yet."""
    written: int = 0
    """`seen`, as the ledger has it."""
    refused: bool = False
    """The ledger's database cannot hold it: given up."""

    @property
    def due(self) -> bool:
        """Whether there is something to write, and it is known, or will not be, when the life began."""
        told = self.begun or self.sample or self.ended or self.seen - self.first > _PATIENCE
        return bool(told) and self.seen > self.written and not self.refused


@dataclass(slots=True)
class EngineTime:
    """One per worker. The event loop tells it what it saw; a thread writes."""

    ledger: Ledger
    worker: str
    interval: float = WRITE_SECONDS
    clock: Timeline = field(default_factory=SteadyTime)
    # Mutable state, under the lock.
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _lives: dict[str, _Life] = field(default_factory=dict)
    _ended: list[_Life] = field(default_factory=list)
    _failed: dict[str, int] = field(default_factory=dict)
    _samples: dict[SampleKey, EngineSample] = field(default_factory=dict)
    # Mutable state of whoever writes.
    _writing: threading.Lock = field(default_factory=threading.Lock)
    _away: bool = False

    def __repr__(self) -> str:
        return f"<EngineTime {sorted(self._lives)} {len(self._ended)} to write>"

    def alive(self, engine: Engine, now: int, sample: EngineSample | None = None) -> None:
        """A probe found it up; `sample`: what it said of itself, if it was asked."""
        with self._lock:
            life = self._lives.get(engine.name)
            if life is None or self._is_over(life, now) or _restarted(life, sample):
                life = self._begin(engine, now)
            elif _terms(life.engine) != _terms(engine):
                # The same process, which has told when it began: no time is lost in between.
                before, life = life.sample, self._begin(engine, now)
                life.sample = before
            life.seen = max(life.seen, now)
            if sample is not None:
                life.sample = sample
                key = (engine.name, sample.began or -life.first, sample.at // HOUR * HOUR)
                self._samples[key] = sample
            self._forget_oldest()

    def missed(self, engine: Engine, now: int, *, down: bool) -> None:
        """A probe failed; `down`: so many did that it counts as dead."""
        with self._lock:
            self._failed[engine.name] = now
            if down:
                self._end(engine.name)

    def gone(self, name: str) -> None:
        """It left the registry."""
        with self._lock:
            self._failed.pop(name, None)
            self._end(name)

    async def run(self) -> None:
        """Write for ever; cancel to stop, then `close`."""
        while True:
            await asyncio.sleep(self.interval)
            await asyncio.to_thread(self.write)

    async def close(self) -> None:
        await asyncio.to_thread(self.write)

    def write(self) -> bool:
        """What the ledger does not have yet, in one transaction; what it cannot hold is given up, so that it
        holds up nothing else. False: the ledger is away, and all is kept."""
        with self._writing:
            with self._lock:
                plan = [(life, life.seen) for life in (*self._ended, *self._lives.values()) if life.due]
                samples = dict(self._samples)
            try:
                begun = self._commit_each(plan, samples)
            except LedgerUnavailableError as error:
                if not self._away:
                    log.warning("Ledger: %s Engine time is kept in memory.", error)
                self._away = True
                return False
            if self._away:
                log.warning("Ledger: engine time is written again.")
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

    def _is_over(self, life: _Life, now: int) -> bool:
        """Nobody has looked for too long, or the clock was set since it began."""
        return now - life.seen > BRIDGE or life.era != self.clock.era

    def _begin(self, engine: Engine, now: int) -> _Life:
        self._end(engine.name)
        after = max((life.seen for life in self._ended if life.engine.name == engine.name), default=0)
        life = _Life(engine, now, self._failed.pop(engine.name, 0), after, now, self.clock.era)
        self._lives[engine.name] = life
        return life

    def _end(self, name: str) -> None:
        life = self._lives.pop(name, None)
        if life is not None:
            life.ended = True
            self._ended.append(life)

    def _forget_oldest(self) -> None:
        """Of the engine that has the most waiting: one that begins anew all the time costs no other."""
        if len(self._ended) > _MOST or len(self._samples) > _MOST:
            log.error("Ledger unavailable for too long: dropping the oldest engine time.")
            lives = Counter(life.engine.name for life in self._ended)
            counters = Counter(key[0] for key in self._samples)
            most = {name for of in (lives, counters) for name, _ in of.most_common(1)}
            old = [life for life in self._ended if life.engine.name in most][: _MOST // 10]
            forgotten = set(map(id, old))
            self._ended = [life for life in self._ended if id(life) not in forgotten]
            for key in sorted((k for k in self._samples if k[0] in most), key=lambda k: k[2])[: _MOST // 10]:
                del self._samples[key]

    def _commit_each(
        self, plan: Sequence[tuple[_Life, int]], samples: Mapping[SampleKey, EngineSample]
    ) -> Sequence[Beginnings | None]:
        """All at once; if the database refuses that, each alone. None: refused for good. Raises
        LedgerUnavailableError."""
        if not plan and not samples:
            return []
        try:
            return self._commit(plan, samples)
        except REFUSALS as error:
            if not is_definite(error):
                raise
            if len(plan) + len(samples) == 1:
                what = [*(life.engine for life, _ in plan), *samples.items()]
                log.error("Dropped engine time that the ledger cannot store: %s: %r", error, what)
                return [None] * len(plan)
        begun = [begun for one in plan for begun in self._commit_each([one], {})]
        for key, sample in samples.items():
            self._commit_each([], {key: sample})
        return begun

    def _commit(
        self, plan: Sequence[tuple[_Life, int]], samples: Mapping[SampleKey, EngineSample]
    ) -> list[Beginnings]:
        begun: list[Beginnings] = []
        spans: list[dict[str, Any]] = []
        dirty: set[EngineHour] = set()
        with self.ledger.write() as connection:
            for life, seen in plan:
                since = life.begun or _beginnings(connection, life, self.clock.since)
                begun.append(since)
                spans += self._spans(life.engine, since, seen)
                # The hour after an end near its turn too: a later life in it may be known already.
                begins = life.written or since.startup - BRIDGE
                dirty.update(_engine_hours(life.engine, begins, seen + BRIDGE))
            _put_latest(connection, engine_spans, "seen", spans)
            _put_latest(connection, engine_counters, "at", _counters(connection, samples))
            mark_dirty(connection, dirty)
        return begun

    def _spans(self, engine: Engine, since: Beginnings, seen: int) -> Iterator[dict[str, Any]]:
        for phase, start, end in (("startup", since.startup, since.ready), ("up", since.up, seen)):
            if start < end:
                row = {"engine": engine.name, "worker": self.worker, "started": start, "phase": phase}
                yield {**row, "seen": end, **_terms(engine)}


def _terms(engine: Engine) -> dict[str, Any]:
    """What decides on the price of its time: other terms, another span."""
    return {
        "gpu_type": engine.gpu_type,
        "gpu_count": engine.gpu_count,
        "region": engine.region,
        "purchase": engine.purchase,
        "base_model": engine.base_model,
    }


def _restarted(life: _Life, sample: EngineSample | None) -> bool:
    return sample is not None and life.sample is not None and sample.is_of_another_process(life.sample)


def _beginnings(connection: Connection, life: _Life, since: int) -> Beginnings:
    spans = engine_spans.c
    query = select(func.max(spans.seen)).where(spans.engine == life.engine.name, spans.started <= life.first)
    known = connection.execute(query).scalar_one() or 0
    sample = life.sample
    return beginnings(
        first=life.first,
        failed=life.failed,
        epoch=sample.by_our_clock(sample.began) if sample else None,
        ready=sample.by_our_clock(sample.ready) if sample else None,
        registered=life.engine.registered,
        known=max(known, life.after),
        since=since,
    )


def _engine_hours(engine: Engine, start: int, end: int) -> Iterator[EngineHour]:
    for hour in range(start // HOUR * HOUR, end + 1, HOUR):
        yield hour, engine.name, engine.gpu_type, engine.gpu_count


def _counters(connection: Connection, samples: Mapping[SampleKey, EngineSample]) -> Iterator[dict[str, Any]]:
    for (engine, epoch, hour), sample in sorted(samples.items()):
        yield {
            "engine": engine,
            "epoch": epoch if epoch > 0 else _guessed(connection, engine, -epoch, sample),
            "hour": hour,
            "at": sample.at,
            "prompt_tokens": sample.prompt_tokens,
            "cached_tokens": sample.cached_tokens,
            "completion_tokens": sample.completion_tokens,
        }


def _guessed(connection: Connection, engine: str, first: int, sample: EngineSample) -> int:
    """The epoch of an engine that does not say when it began: the last one, unless its counters have gone
    back. All workers must find the same, or its tokens would count once for each."""
    table = engine_counters.c
    query = select(table.epoch, table.prompt_tokens, table.completion_tokens)
    last = connection.execute(query.where(table.engine == engine).order_by(table.at.desc()).limit(1)).first()
    if last is None or last[1] > sample.prompt_tokens or last[2] > sample.completion_tokens:
        return first
    return int(last[0])


def _put_latest(connection: Connection, table: Table, by: str, rows: Iterable[dict[str, Any]]) -> None:
    """In a fixed order, so that two writers cannot wait for each other; `by` only grows."""
    key = [column.name for column in table.primary_key.columns]
    ordered = sorted(rows, key=lambda row: [row[name] for name in key])
    if not ordered:
        return
    put = insert(connection, table)
    changed = {name: put.excluded[name] for name in ordered[0] if name not in key}
    newer = put.excluded[by] > table.c[by]
    connection.execute(put.on_conflict_do_update(index_elements=key, set_=changed, where=newer), ordered)

"""Write engines' lives and token counters to the ledger."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Table, func, select

from adapters.model import Engine
from gateway.metering.engine_metrics import EngineSample
from gateway.metering.engine_time.engine_life import BRIDGE, Beginnings, EngineLife, beginnings, terms_of
from gateway.metering.ledger.database import REFUSALS, insert, is_definite
from gateway.metering.ledger.engine_hours import EngineHour, mark_dirty
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import engine_counters, engine_spans
from gateway.units import HOUR

log = logging.getLogger("florin.metering")

SampleKey = tuple[str, int, int]
"""(engine, epoch, hour). A negative epoch: when the engine was first seen, if it does not report its
start."""
Seen = tuple[EngineLife, int]
"""A life, and until when it was seen."""


def write_each(
    ledger: Ledger, worker: str, lives: Sequence[Seen], samples: Mapping[SampleKey, EngineSample], since: int
) -> list[Beginnings | None]:
    """Write everything in one transaction or, if the database refuses that, each life and sample in its own,
    so that one that cannot be stored does not block the others. `since`: see `beginnings`. Returns each
    life's beginnings; None if it was refused. Raises LedgerUnavailableError."""
    if not lives and not samples:
        return []
    try:
        return _write(ledger, worker, lives, samples, since)
    except REFUSALS as error:
        if not is_definite(error):
            raise
        if len(lives) + len(samples) == 1:
            what = [*(life.engine for life, _ in lives), *samples.items()]
            log.error("Dropped engine time that the ledger cannot store: %s: %r", error, what)
            return [None] * len(lives)
    begun = [begun for life in lives for begun in write_each(ledger, worker, [life], {}, since)]
    for key, sample in samples.items():
        write_each(ledger, worker, [], {key: sample}, since)
    return begun


def _write(
    ledger: Ledger, worker: str, lives: Sequence[Seen], samples: Mapping[SampleKey, EngineSample], since: int
) -> list[Beginnings | None]:
    begun: list[Beginnings | None] = []
    spans: list[dict[str, Any]] = []
    dirty: set[EngineHour] = set()
    with ledger.write() as connection:
        for life, seen in lives:
            start = life.begun or _beginnings(connection, life, since)
            begun.append(start)
            spans += _spans(life.engine, worker, start, seen)
            # A life that ends near the turn of the hour also affects the next hour.
            begins = life.written or start.startup - BRIDGE
            dirty.update(_engine_hours(life.engine, begins, seen + BRIDGE))
        _put_latest(connection, engine_spans, "seen", spans)
        _put_latest(connection, engine_counters, "at", _counters(connection, samples))
        mark_dirty(connection, dirty)
    return begun


def _spans(engine: Engine, worker: str, since: Beginnings, seen: int) -> Iterator[dict[str, Any]]:
    for phase, start, end in (("startup", since.startup, since.ready), ("up", since.up, seen)):
        if start < end:
            row = {"engine": engine.name, "worker": worker, "started": start, "phase": phase}
            yield {**row, "seen": end, **terms_of(engine)}


def _beginnings(connection: Connection, life: EngineLife, since: int) -> Beginnings:
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
    """The epoch of an engine that does not report its start: the last one, unless its counters have
    decreased. All workers must arrive at the same, or its tokens would be counted once per worker."""
    table = engine_counters.c
    query = select(table.epoch, table.prompt_tokens, table.completion_tokens)
    last = connection.execute(query.where(table.engine == engine).order_by(table.at.desc()).limit(1)).first()
    if last is None or last[1] > sample.prompt_tokens or last[2] > sample.completion_tokens:
        return first
    return int(last[0])


def _put_latest(connection: Connection, table: Table, by: str, rows: Iterable[dict[str, Any]]) -> None:
    """Upsert the rows with the highest `by`, in key order so that two writers cannot deadlock."""
    key = [column.name for column in table.primary_key.columns]
    ordered = sorted(rows, key=lambda row: [row[name] for name in key])
    if not ordered:
        return
    put = insert(connection, table)
    changed = {name: put.excluded[name] for name in ordered[0] if name not in key}
    newer = put.excluded[by] > table.c[by]
    connection.execute(put.on_conflict_do_update(index_elements=key, set_=changed, where=newer), ordered)

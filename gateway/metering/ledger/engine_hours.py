"""Engine-hours, the unit in which usage is rolled up, and the marks of those that must be rolled up again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from random import getrandbits
from typing import Any

from sqlalchemy import Connection, select

from gateway.metering.ledger.database import insert_in
from gateway.metering.ledger.schema import dirty_hours, engine_spans, ledger_state
from gateway.units import HOUR

EngineHour = tuple[int, str, str, int]
"""(hour, engine, gpu_type, gpu_count)"""

PLACE = ("engine", "gpu_type", "gpu_count")
Pool = tuple[str, str, int]
"""Engine, GPU type, GPUs."""
Terms = tuple[str, str]
"""Region, purchase model."""


def touched(spans: Iterable[tuple[int, int, str, str, int]]) -> set[EngineHour]:
    """The engine-hours of [dispatched, ended], with their PLACE; only that of the end if the clock was set
    back."""
    hours = {
        (start // HOUR, end // HOUR, engine, gpu_type, gpu_count)
        for start, end, engine, gpu_type, gpu_count in spans
    }
    return {
        (hour * HOUR, engine, gpu_type, gpu_count)
        for start, end, engine, gpu_type, gpu_count in hours
        for hour in range(min(start, end), end + 1)
    }


def mark_dirty(connection: Connection, engine_hours: Iterable[EngineHour]) -> None:
    """In a write transaction: mark engine-hours to be rolled up again, except those whose records are pruned.
    In a fixed order, so that two writers cannot deadlock.

    A new mark starts at a random version, so that a roll-up that read an earlier, since deleted mark of the
    same engine-hour does not mistake this one for it."""
    since = pruned_before(connection)
    rows = [
        {"hour": hour, "engine": engine, "gpu_type": gpu_type, "gpu_count": count, "version": getrandbits(48)}
        for hour, engine, gpu_type, count in sorted(set(engine_hours))
        if hour >= since
    ]
    if rows:
        connection.execute(_mark(connection.dialect.name), rows)


@cache
def _mark(dialect: str) -> Any:
    put = insert_in(dialect, dirty_hours)
    return put.on_conflict_do_update(
        index_elements=list(dirty_hours.primary_key.columns),
        set_={"version": dirty_hours.c.version + 1},
    )


_PRUNED_BEFORE = select(ledger_state.c.value).where(ledger_state.c.name == "pruned_before")


def pruned_before(connection: Connection) -> int:
    """Some records that ended before this time have been removed, so their hours are never rolled up
    again."""
    return connection.execute(_PRUNED_BEFORE).scalar() or 0


def changed_terms(connection: Connection, start: int, end: int) -> dict[Pool, set[Terms]]:
    """The engines that had several terms in [start, end), with them."""
    c = engine_spans.c
    columns = [*(c[name] for name in PLACE), c.region, c.purchase]
    query = select(*columns).where(c.seen >= start, c.started < end).distinct()
    terms: defaultdict[Pool, set[Terms]] = defaultdict(set)
    for engine, gpu_type, gpu_count, region, purchase in connection.execute(query):
        terms[engine, gpu_type, gpu_count].add((region, purchase))
    return {pool: several for pool, several in terms.items() if len(several) > 1}

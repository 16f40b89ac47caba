"""When engines were provisioned: what someone who recomputes a bill needs besides records and prices.

Returns plain data, because the functions run in the ledger process. Times are Unix microseconds, as in usage
records."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import Connection, select, tuple_

from gateway.costs.periods import Period
from gateway.costs.rollups.attribution import BRIDGED
from gateway.costs.rollups.rollup import roll
from gateway.metering.ledger.engine_hours import EngineHour
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import calibrations, engine_hours, engine_spans

Sighting = tuple[str, str, int, str]
"""Engine, worker, start, phase: the key of `engine_spans`."""

_ROLL_SECONDS = 30.0
_SIGHTING = ("engine", "worker", "started", "phase")
_TERMS = ("gpu_type", "gpu_count", "region", "purchase", "base_model", "tenant")
_PLACE = ("hour", "engine", "gpu_type", "gpu_count")
_HOUR = ("region", "purchase", "base_model", "provisioned_us", "startup_us", "busy_us", "nano_gpu_hours")
_WEIGHTS = ("prefill_ps", "cached_ps", "decode_ps", "kv_ps", "load_ps")


def sightings_page(
    ledger: Ledger, within: Period, *, engine: str | None, after: Sighting | None, limit: int
) -> tuple[list[dict[str, Any]], Sighting | None]:
    """When each worker saw each engine alive, [started, seen), with everything that touches the period or may
    bridge a gap at its ends; and the position of the last if there are more. Raises
    LedgerUnavailableError."""
    table = engine_spans.c
    key = [table[name] for name in _SIGHTING]
    query = select(*key, table.seen, *(table[name] for name in _TERMS)).where(
        table.started < within.end + BRIDGED, table.seen > within.start - BRIDGED
    )
    if engine is not None:
        query = query.where(table.engine == engine)
    if after is not None:
        query = query.where(tuple_(*key) > after)
    with ledger.read() as connection:
        rows = connection.execute(query.order_by(*key).limit(limit + 1)).mappings().all()
    last = tuple(rows[limit - 1][name] for name in _SIGHTING) if len(rows) > limit else None
    return [dict(row) for row in rows[:limit]], last


def hours_page(
    ledger: Ledger, within: Period, *, engine: str | None, after: EngineHour | None, limit: int, now: int
) -> tuple[dict[str, Any], EngineHour | None, bool]:
    """Engine-hours as last rolled up, with the weights that divided them; the position of the last if there
    are more; and whether all records are rolled up. Raises LedgerUnavailableError."""
    rolled = roll(ledger, now, patience=_ROLL_SECONDS)
    table = engine_hours.c
    key = [table[name] for name in _PLACE]
    query = select(*key, *(table[name] for name in _HOUR), table.calibration).where(
        table.hour >= within.start, table.hour < within.end
    )
    if engine is not None:
        query = query.where(table.engine == engine)
    if after is not None:
        query = query.where(tuple_(*key) > after)
    with ledger.read() as connection:
        rows = connection.execute(query.order_by(*key).limit(limit + 1)).mappings().all()
        shown = [dict(row) for row in rows[:limit]]
        weights = _weights(connection, (row["calibration"] for row in shown))
    last = tuple(rows[limit - 1][name] for name in _PLACE) if len(rows) > limit else None
    return {"data": shown, "calibrations": weights}, last, rolled.pending == 0


def _weights(connection: Connection, ids: Iterable[int]) -> list[dict[str, Any]]:
    table = calibrations.c
    names = ("id", "gpu_type", "base_model", "valid_from", *_WEIGHTS)
    query = select(*(table[name] for name in names)).where(table.id.in_({*ids} - {0})).order_by(table.id)
    return [dict(row) for row in connection.execute(query).mappings()]

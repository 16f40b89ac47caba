"""Rows of a ledger for tests: whatever a test does not say is as it is in most of them."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from sqlalchemy import Table, insert

from gateway.costs.prices.exchange_rates import add_exchange_rate
from gateway.costs.prices.price import Price
from gateway.costs.prices.price_store import add_price
from gateway.costs.rollups.daily_sums import SUMMED, mark_unsummed
from gateway.metering.ledger.chain import seal
from gateway.metering.ledger.engine_hours import mark_dirty
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import engine_spans, periods
from gateway.units import HOUR
from tests.support.waiting import PATIENCE_S

POOL: dict[str, Any] = {
    "engine": "gpu-a", "gpu_type": "H100", "gpu_count": 1, "region": "", "purchase": "on_demand",
    "base_model": "base",
}  # fmt: skip  # one name a line says no more


def put(ledger: Ledger, table: Table, *rows: dict[str, Any]) -> None:
    with ledger.write() as connection:
        connection.execute(insert(table), list(rows))
        if table in SUMMED:
            mark_unsummed(connection, (row["hour"] for row in rows))


def price(
    ledger: Ledger, gpu_type: str = "H100", rate: str = "2.00", valid_from: int | None = 0, **changes: Any
) -> Price:
    """Add a price in USD, on demand, in any region, without end; from the beginning."""
    terms = {
        "currency": "USD", "purchase": "on_demand", "region": "", "valid_to": None, "now": valid_from or 1, **changes,
    }  # fmt: skip
    return add_price(ledger, gpu_type=gpu_type, rate=rate, valid_from=valid_from, **terms)[0]


def exchange_rate(ledger: Ledger, rate: str, valid_from: int, **changes: Any) -> None:
    """Add a rate from USD to EUR."""
    terms = {"currency": "USD", "target": "EUR", "source": "ECB", "reason": None, "now": 1, **changes}
    add_exchange_rate(ledger, rate=rate, valid_from=valid_from, **terms)


def engine_hour(hour: int, gpu_hours: float = 1, **changes: Any) -> dict[str, Any]:
    """The whole of an engine's hour number `hour`: a row of `engine_hours`."""
    return {
        **POOL, "hour": hour * HOUR, "provisioned_us": round(gpu_hours * HOUR), "startup_us": 0, "busy_us": 0,
        "nano_gpu_hours": round(gpu_hours * 10**9), "records": 0, "calibration": 0, **changes,
    }  # fmt: skip


def see_up(ledger: Ledger, start: int, end: int, **changes: Any) -> None:
    """An engine was seen alive for that time, and its hours wait to be rolled up."""
    row = {**POOL, "worker": "w1", "phase": "up", "started": start, "seen": end, **changes}
    with ledger.write() as connection:
        connection.execute(insert(engine_spans), [row])
        hours = range(start // HOUR * HOUR, end, HOUR)
        mark_dirty(connection, [(hour, row["engine"], row["gpu_type"], row["gpu_count"]) for hour in hours])


def residency_span(version: str, start: int, end: int, **changes: Any) -> dict[str, Any]:
    """A version was seen resident for that time: a row of `residency_spans`."""
    pool = {name: value for name, value in POOL.items() if name != "base_model"}
    return {**pool, "version": version, "started": start, "seen": end, "slots": 4, **changes}


def calibration(**changes: Any) -> dict[str, Any]:
    """A row of `calibrations`, without any weight."""
    return {
        "gpu_type": "H100", "base_model": "base", "engine_version": "1", "valid_from": 0, "recorded_at": 0,
        "prefill_ps": 0, "cached_ps": 0, "decode_ps": 0, "kv_ps": 0, "load_ps": 0, "document": "{}", **changes,
    }  # fmt: skip


def mark_closed(ledger: Ledger, month: str, **changes: Any) -> None:
    """A month is closed, as far as whoever reads only that can tell."""
    row = {
        "month": month, "state": "closed", "first_batch": 0, "cutoff_batch": 0, "closing_at": 0, "closed_by": "x",
        "policy": "none", "document": "{}", **changes,
    }  # fmt: skip
    put(ledger, periods, row)
    with ledger.write() as connection:
        seal(connection, "month", month)


def batch_leases_lapse(state: Path) -> None:
    """As if half a minute had passed since a killed gateway of that state directory ran its batches."""
    with closing(sqlite3.connect(state / "ledger.db", timeout=PATIENCE_S)) as database, database:
        database.execute("UPDATE batches SET lease_until = 0")

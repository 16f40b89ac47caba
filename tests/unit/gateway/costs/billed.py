"""November with a provider's bill: two hours of one engine at 2.50, a quarter used, the rest idle; one record, counted
alike by the engine."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from gateway.costs.periods import iso, month_of
from gateway.costs.reconciliation.reconcile import reconcile
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import engine_counters, engine_hours
from gateway.units import HOUR
from tests.support.ledger_rows import engine_hour, price, put
from tests.unit.gateway.costs.rolled import row, write
from tests.unit.gateway.metering.make import record

NOVEMBER = month_of("2026-11")
FIRST = NOVEMBER.start // HOUR
NOW = NOVEMBER.end + 5
HEAD = "start,end,resource,gpu_type,gpu_hours,cost,currency\n"


def fill(ledger: Ledger) -> None:
    put(ledger, engine_hours, engine_hour(FIRST), engine_hour(FIRST + 1))
    write(
        ledger,
        row(FIRST, nano_gpu_hours=500_000_000),
        row(FIRST, bucket="idle", nano_gpu_hours=500_000_000),
        row(FIRST + 1, bucket="idle"),
    )
    counters = {
        "engine": "gpu-a", "epoch": FIRST * HOUR, "hour": FIRST * HOUR, "at": FIRST * HOUR + 60_000_000,
        "prompt_tokens": 10, "completion_tokens": 5, "cached_tokens": None,
    }  # fmt: skip
    put(ledger, engine_counters, counters)
    ledger.insert([record("one", dispatched=FIRST * HOUR + 1)])
    price(ledger, "H100", "2.50", None)


def line(
    hour: int, hours: int = 1, engine: str = "gpu-a", gpu_hours: Any = None, cost: float | str | None = None
) -> str:
    """Of the bill, at 2.50 unless said otherwise."""
    gpu_hours = hours if gpu_hours is None else gpu_hours
    cost = gpu_hours * 2.5 if cost is None else cost
    start, end = iso((FIRST + hour) * HOUR), iso((FIRST + hour + hours) * HOUR)
    return f"{start},{end},{engine},H100,{gpu_hours},{cost},USD"


def run(ledger: Ledger, tolerance: str = "0.1", now: int = NOW, month: str = "2026-11") -> dict[str, Any]:
    return reconcile(ledger, month, tolerance=Fraction(tolerance), now=now)

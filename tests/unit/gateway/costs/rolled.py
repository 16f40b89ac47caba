"""Roll-ups written by hand, for tests of what reads them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from gateway.costs.cost_lines import CostLine, read_lines
from gateway.costs.periods import Period, iso
from gateway.costs.prices.book import PriceBook
from gateway.costs.prices.price_store import read_prices
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import rollups
from gateway.units import HOUR
from tests.support.ledger_rows import put

ROW: dict[str, Any] = {
    "engine": "gpu-a", "gpu_type": "H100", "gpu_count": 1, "region": "", "purchase": "on_demand",
    "bucket": "usage", "tenant": "acme", "adapter": "acme/support", "version": "v1", "base_model": "base",
    "requests": 1, "prompt_tokens": 10, "cached_tokens": 0, "completion_tokens": 5, "reasoning_tokens": 0,
    "nano_gpu_hours": 1_000_000_000, "weight_input": 10, "weight_cached": 0, "weight_output": 10,
    "weight_other": 0, "calibration": 0, "correction": False, "rate_micros": None, "currency": None,
}  # fmt: skip  # one name a line says no more
NOBODY = {
    "tenant": "", "adapter": "", "version": "", "requests": 0, "prompt_tokens": 0, "completion_tokens": 0,
    "weight_input": 0, "weight_output": 0,
}  # fmt: skip


def row(hour: int = 100, **changes: Any) -> dict[str, Any]:
    """One roll-up row of hour number `hour`; whatever has no tenant is without requests and tokens too."""
    at = hour * HOUR
    if changes.get("bucket") in {"headroom", "startup", "idle"}:
        changes = {**NOBODY, **changes}
    return {"posted": iso(at)[:7], "hour": at, "piece": at, **ROW, **changes}


def write(ledger: Ledger, *rows: dict[str, Any]) -> None:
    put(ledger, rollups, *rows)


def lines(
    ledger: Ledger, period: Period, by: Sequence[str] = (), *, tenants: Sequence[str] = ()
) -> Iterator[CostLine]:
    """`read_lines` in a transaction of its own."""
    with ledger.read() as connection:
        yield from read_lines(connection, PriceBook(read_prices(connection)), period, by, tenants=tenants)

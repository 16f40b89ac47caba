"""Plain ledger lines: the data behind the other files, for those who build their own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from gateway.costs.cost_lines import CostLine
from gateway.costs.export.cells import Fixed, Row


def rows(lines: Iterable[CostLine], by: Sequence[str], *, month: str, currency: str | None) -> Iterator[Row]:
    """Rows from lines grouped by `by`. Cost and rate are null if a price is missing."""
    for line in lines:
        rate, cost = line.rate_micros, line.cost
        keys: Row = {name: value or None for name, value in zip(by, line.keys, strict=True)}
        if "day" in keys:
            keys["hour"] = f"{keys.pop('day')}T00:00:00Z"
        yield {
            **keys,
            "month": month,
            "bucket": line.bucket,
            "correction": line.correction,
            "calibration": line.calibration,
            "requests": line.requests,
            "prompt_tokens": line.prompt_tokens,
            "cached_tokens": line.cached_tokens,
            "completion_tokens": line.completion_tokens,
            "reasoning_tokens": line.reasoning_tokens,
            "gpu_hours": Fixed(line.nano_gpu_hours, 9),
            "rate_per_gpu_hour": None if rate is None else Fixed(rate, 6),
            "cost": None if cost is None else Fixed(cost, 15),
            "currency": None if cost is None else currency,
        }

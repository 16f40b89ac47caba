"""The UTC days and months of budgets."""

from __future__ import annotations

from datetime import UTC, datetime

from adapters.store.protocol.limits import Flow
from gateway.units import DAY


def period_of(flow: int, now: int) -> tuple[int, int]:
    """Start and end of a budget's day or month at that time, Unix microseconds."""
    if flow in (Flow.TOKENS_PER_DAY, Flow.MONEY_PER_DAY):
        start = now - now % DAY
        return start, start + DAY
    first = datetime.fromtimestamp(now // 1_000_000, UTC).replace(day=1, hour=0, minute=0, second=0)
    after = first.replace(year=first.year + first.month // 12, month=first.month % 12 + 1)
    return int(first.timestamp()) * 1_000_000, int(after.timestamp()) * 1_000_000

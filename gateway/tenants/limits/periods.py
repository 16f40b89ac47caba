"""The UTC days and months of budgets."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from adapters.store.protocol.limits import Flow

_DAY: Final = 86_400_000_000


def period_of(flow: int, now: int) -> tuple[int, int]:
    """Start and end of a budget's day or month at that time, Unix microseconds."""
    if flow in (Flow.TOKENS_PER_DAY, Flow.MONEY_PER_DAY):
        start = now - now % _DAY
        return start, start + _DAY
    first = datetime.fromtimestamp(now // 1_000_000, UTC).replace(day=1, hour=0, minute=0, second=0)
    after = first.replace(year=first.year + first.month // 12, month=first.month % 12 + 1)
    return int(first.timestamp()) * 1_000_000, int(after.timestamp()) * 1_000_000

"""The windows of limits: when a period begins and ends in a timezone, and how long a rolling one is. Pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo

from adapters.store.protocol.limits import Flow, Kind
from gateway.tenants.terms import Window
from gateway.units import DAY, HOUR

FOR_EVER: Final = 2**53 - 1
"""When a total ends, Unix microseconds."""
MINUTE_MS: Final = 60_000
ROLLING: Final = {
    Window.ROLLING_HOUR: HOUR,
    Window.FIVE_HOURS: 5 * HOUR,
    Window.ROLLING_DAY: DAY,
    Window.ROLLING_WEEK: 7 * DAY,
    Window.ROLLING_MONTH: 30 * DAY,
}
"""Lengths in microseconds."""
_ENDLESS: Final = frozenset({Window.TOTAL, Window.SESSION})


def period_of(window: Window, now: int, timezone: str = "UTC") -> tuple[int, int]:
    """Start and end of the window at that time, Unix microseconds. A rolling one ends now."""
    if window in ROLLING:
        return now - ROLLING[window], now
    if window in _ENDLESS:
        return 0, FOR_EVER
    if window is Window.HOUR:
        local = datetime.fromtimestamp(now // 1_000_000, ZoneInfo(timezone))
        shift = int((local.utcoffset() or timedelta()).total_seconds()) * 1_000_000 % HOUR
        start = now - (now + shift) % HOUR
        return start, start + HOUR
    if timezone == "UTC" and window is Window.DAY:
        return now - now % DAY, now - now % DAY + DAY
    zone = UTC if timezone == "UTC" else ZoneInfo(timezone)
    day = datetime.fromtimestamp(now // 1_000_000, zone).replace(hour=0, minute=0, second=0, fold=0)
    if window is Window.WEEK:
        day -= timedelta(days=day.weekday())
        after = day + timedelta(days=7)
    elif window is Window.MONTH:
        day = day.replace(day=1)
        after = day.replace(year=day.year + day.month // 12, month=day.month % 12 + 1)
    else:
        after = day + timedelta(days=1)
    return int(day.timestamp()) * 1_000_000, int(after.timestamp()) * 1_000_000


def name_of(measure: str, window: Window) -> str:
    """`tokens_per_day`, `requests_per_5h`, `money_in_total`."""
    if window is Window.TOTAL:
        return f"{measure}_in_total"
    return f"{measure}_per_{window.replace('-', '_')}"


@lru_cache(maxsize=10_000)
def flow_of(measure: str, window: Window, timezone: str, hour: int) -> Flow:
    """What the store counts. `hour`: any of the present, Unix hours: the store's clock may be a little ahead
    of or behind the worker's, so it knows what is before and after."""
    name = name_of(measure, window)
    if window is Window.MINUTE:
        return Flow(name, Kind.RATE, (MINUTE_MS,))
    if window in ROLLING:
        return Flow(name, Kind.ROLLING, (ROLLING[window] // 1000,))
    if window in _ENDLESS:
        return Flow(name, Kind.PERIOD, (0,))
    start, end = period_of(window, hour * HOUR, timezone)
    before, _ = period_of(window, start - 1, timezone)
    _, later = period_of(window, end, timezone)
    return Flow(name, Kind.PERIOD, tuple(moment // 1000 for moment in (before, start, end, later)))


def flow_at(measure: str, window: Window, timezone: str, now: int) -> Flow:
    """The same, at a time in Unix microseconds."""
    return flow_of(measure, window, timezone, now // HOUR)

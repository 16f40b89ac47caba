"""Parses and formats ISO 8601 times and months; all UTC, all ranges half-open [from, to)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

HOUR = 3_600_000_000
"""Microseconds."""
DAY = 24 * HOUR

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_MONTH = re.compile(r"(\d{4})-(\d{2})", re.ASCII)
_INSTANT = re.compile(r"\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}.*)?", re.ASCII | re.DOTALL)


class PeriodError(ValueError):
    """Not a time or range. `param` names the parameter."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param

    def __reduce__(self) -> tuple[Any, ...]:
        """So that it can leave the ledger process."""
        return type(self), (self.param, str(self))


@dataclass(frozen=True, slots=True)
class Period:
    """[start, end) in Unix microseconds, UTC."""

    start: int
    end: int


def micros(at: datetime) -> int:
    return (at - _EPOCH) // _MICROSECOND


LAST_HOUR = micros(datetime(9999, 12, 31, 23, tzinfo=UTC))
"""The last hour that can be written in ISO 8601."""


def iso(at: int) -> str:
    """`2026-11-01T00:00:00Z`, with fractional seconds if there are any."""
    when = _EPOCH + timedelta(microseconds=at)
    return when.isoformat().replace("+00:00", "Z")


def instant(param: str, value: str) -> int:
    """Unix microseconds of an ISO 8601 date or time; UTC if it has no zone. Raises PeriodError."""
    try:
        if not _INSTANT.fullmatch(value):
            raise ValueError(value)
        when = datetime.fromisoformat(value)
        return micros(when.replace(tzinfo=UTC) if when.tzinfo is None else when.astimezone(UTC))
    except (ValueError, OverflowError) as error:
        raise PeriodError(
            param, f"{param}={value[:40]!r} is not an ISO 8601 time like 2026-11-01T00:00:00Z."
        ) from error


def month(value: str) -> Period:
    """The whole month `2026-11`. Raises PeriodError."""
    match = _MONTH.fullmatch(value)
    year, number = (int(match[1]), int(match[2])) if match else (0, 0)
    if not (1970 <= year < 9999 and 1 <= number <= 12):
        raise PeriodError("month", f"month={value[:40]!r} is not a month like 2026-11.")
    after = (year + 1, 1) if number == 12 else (year, number + 1)
    return Period(micros(datetime(year, number, 1, tzinfo=UTC)), micros(datetime(*after, 1, tzinfo=UTC)))


def months(within: Period) -> tuple[str, ...] | None:
    """The months of the period, like `("2026-11",)`; None unless it consists of whole months."""
    found: list[str] = []
    at = within.start
    while at < within.end:
        name = iso(at)[:7]
        try:
            whole = month(name)
        except PeriodError:  # outside the supported range
            return None
        if at != whole.start or whole.end > within.end:
            return None
        found.append(name)
        at = whole.end
    return tuple(found) or None


def period(*, start: str | None, end: str | None, whole_month: str | None, now: int) -> Period:
    """The period given by `from`, `to` and `month`. Defaults: this month; the start of the month for a
    missing `from`, now for a missing `to`. Raises PeriodError."""
    if whole_month:
        if start or end:
            raise PeriodError("month", "`month` cannot be combined with `from` or `to`.")
        return month(whole_month)
    current = month(iso(now)[:7])
    if not start and not end:
        return current
    first = instant("from", start) if start else current.start
    last = instant("to", end) if end else now
    if first > last:
        raise PeriodError("from", f"The range is empty: {iso(first)} is after {iso(last)}.")
    return Period(first, last)

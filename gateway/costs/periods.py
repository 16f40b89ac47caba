"""Parses and formats ISO 8601 times and months, in UTC or in a named timezone; all ranges half-open [from,
to)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from itertools import pairwise
from zoneinfo import ZoneInfo

from gateway.costs.field_error import FieldError
from gateway.units import DAY, HOUR

_LONGEST_LOCAL = 3660 * DAY
"""Each of its days is looked at."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_MONTH = re.compile(r"(\d{4})-(\d{2})", re.ASCII)
_OFFSET = re.compile(r"([+-])(0\d|1[0-4]):([0-5]\d)", re.ASCII)
_SPACED_OFFSET = re.compile(r"(?<=:\d\d) (\d\d:?\d\d)$", re.ASCII)
"""A `+` that a URL does not encode arrives as a space."""
_INSTANT = re.compile(r"\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}.*)?", re.ASCII | re.DOTALL)


class PeriodError(FieldError):
    """Not a time or range. `param` names the parameter."""


@dataclass(frozen=True, slots=True)
class Period:
    """[start, end) in Unix microseconds, UTC."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class LocalTime:
    """A timezone during a period, for days that begin at local midnight."""

    timezone: str
    """IANA name, like Europe/Berlin, or an offset, like +05:30."""
    offsets: tuple[tuple[int, int], ...]
    """(from, microseconds ahead of UTC), ascending; the first also holds before."""
    within: Period
    """The period, extended to whole hours of local time."""
    cuts: tuple[int, ...] = ()
    """When a local day, or the period, begins or ends within an hour of UTC; ascending. Only where local time
    is not a whole number of hours ahead."""

    @property
    def cut_hours(self) -> tuple[int, ...]:
        """The hours of UTC that are cut."""
        return tuple(dict.fromkeys(cut - cut % HOUR for cut in self.cuts))

    def cuts_in(self, hour: int) -> list[int]:
        """Where an hour of UTC is cut."""
        return [cut for cut in self.cuts if hour < cut < hour + HOUR]

    def day(self, time: int) -> str:
        """`2026-11-01`"""
        return iso(time + self._ahead(time))[:10]

    def _ahead(self, time: int) -> int:
        return _held(self.offsets, time)

    def iso(self, time: int) -> str:
        """`2026-11-01T00:00:00+01:00`"""
        ahead = self._ahead(time)
        sign, minutes = "-" if ahead < 0 else "+", abs(ahead) // 60_000_000
        return f"{iso(time + ahead).removesuffix('Z')}{sign}{minutes // 60:02}:{minutes % 60:02}"


def micros(time: datetime) -> int:
    return (time - _EPOCH) // _MICROSECOND


LAST_HOUR = micros(datetime(9999, 12, 31, 23, tzinfo=UTC))
"""The last hour that can be written in ISO 8601."""


def iso(time: int) -> str:
    """`2026-11-01T00:00:00Z`, with fractional seconds if there are any."""
    when = _EPOCH + timedelta(microseconds=time)
    return when.isoformat().replace("+00:00", "Z")


def zone(name: str) -> tzinfo:
    """The timezone of an IANA name, or of an offset like +05:30. Raises PeriodError."""
    if name == "UTC":
        return UTC
    if offset := _OFFSET.fullmatch(name):
        ahead = timedelta(hours=int(offset[2]), minutes=int(offset[3]))
        return timezone(-ahead if offset[1] == "-" else ahead, name)
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, LookupError) as error:  # a folder, a path, or no such zone
        raise PeriodError(
            "timezone",
            f"timezone={name[:40]!r} is not a known timezone like Europe/Berlin or +05:30.",
        ) from error


def local_time(within: Period, tz: tzinfo) -> LocalTime | None:
    """A timezone during a period; None for UTC. Raises PeriodError if the period is too long."""
    if tz is UTC:
        return None
    if within.end - within.start > _LONGEST_LOCAL:
        raise PeriodError("from", "A report in local time covers at most ten years.")
    days = [(day, _ahead(tz, day)) for day in (*range(within.start, within.end, DAY), within.end)]
    offsets = days[:1]
    for (start, before), (end, after) in pairwise(days):
        if before != after:
            offsets.append((_turn(tz, start, end), after))
    first, last = (_held(offsets, when) for when in (within.start, within.end))
    hours = Period(
        within.start - (within.start + first) % HOUR,
        min(within.end + -(within.end + last) % HOUR, LAST_HOUR),
    )
    return LocalTime(str(tz), tuple(offsets), hours, _cuts(offsets, hours))


def _held(offsets: Sequence[tuple[int, int]], time: int) -> int:
    return next((ahead for start, ahead in reversed(offsets) if start <= time), offsets[0][1])


def _cuts(offsets: Sequence[tuple[int, int]], period: Period) -> tuple[int, ...]:
    """See `LocalTime.cuts`."""
    if not any(ahead % HOUR for _, ahead in offsets):
        return ()
    starts = [period.start, *(start for start, _ in offsets[1:]), period.end]
    cuts = set(starts)  # also when clocks are set, since an hour of UTC may then have two offsets
    for (start, end), (_, ahead) in zip(pairwise(starts), offsets, strict=True):
        cuts.update(range(start + -(start + ahead) % DAY, end, DAY))
    return tuple(sorted(cut for cut in cuts if cut % HOUR))


def _ahead(tz: tzinfo, when: int) -> int:
    offset = (_EPOCH + timedelta(microseconds=when)).astimezone(tz).utcoffset()
    return (offset or timedelta(0)) // _MICROSECOND


def _turn(tz: tzinfo, start: int, end: int) -> int:
    """When the offset changes in (start, end], to the second: never twice in a day."""
    after = _ahead(tz, end)
    while end - start > 1_000_000:
        middle = (start + end) // 2
        start, end = (start, middle) if _ahead(tz, middle) == after else (middle, end)
    return end - end % 1_000_000


def instant(param: str, value: str, tz: tzinfo = UTC) -> int:
    """Unix microseconds of an ISO 8601 date or time; in `tz` if it has no zone. Raises PeriodError."""
    try:
        if not _INSTANT.fullmatch(value):
            raise ValueError(value)
        when = datetime.fromisoformat(_SPACED_OFFSET.sub(r"+\1", value))
        return micros((when.replace(tzinfo=tz) if when.tzinfo is None else when).astimezone(UTC))
    except (ValueError, OverflowError) as error:
        raise PeriodError(
            param, f"{param}={value[:40]!r} is not an ISO 8601 time like 2026-11-01T00:00:00Z."
        ) from error


def instant_or_none(param: str, value: str | None) -> int | None:
    """As `instant`; None for None."""
    return None if value is None else instant(param, value)


def month_of(value: str, tz: tzinfo = UTC) -> Period:
    """The whole month `2026-11`, by default of UTC. Raises PeriodError."""
    match = _MONTH.fullmatch(value)
    year, number = (int(match[1]), int(match[2])) if match else (0, 0)
    if not (1970 <= year < 9999 and 1 <= number <= 12):
        raise PeriodError("month", f"month={value[:40]!r} is not a month like 2026-11.")
    after = (year + 1, 1) if number == 12 else (year, number + 1)
    first, last = datetime(year, number, 1, tzinfo=tz), datetime(*after, 1, tzinfo=tz)
    return Period(micros(first.astimezone(UTC)), micros(last.astimezone(UTC)))


def complete_hours(month: str, now: int) -> Period:
    """The hours of a month that are over. Raises PeriodError."""
    period = month_of(month)
    return Period(period.start, max(period.start, min(period.end, now - now % HOUR)))


def months(within: Period) -> tuple[str, ...] | None:
    """The months of the period, like `("2026-11",)`; None unless it consists of whole months."""
    names: list[str] = []
    start = within.start
    while start < within.end:
        name = iso(start)[:7]
        try:
            period = month_of(name)
        except PeriodError:  # outside the supported range
            return None
        if start != period.start or period.end > within.end:
            return None
        names.append(name)
        start = period.end
    return tuple(names) or None


def period(
    *, start: str | None, end: str | None, whole_month: str | None, now: int, tz: tzinfo = UTC
) -> Period:
    """The period given by `from`, `to` and `month` in the timezone `tz`. Defaults: this month; the start of
    the month for a missing `from`, now for a missing `to`. Raises PeriodError."""
    if whole_month:
        if start or end:
            raise PeriodError("month", "`month` cannot be combined with `from` or `to`.")
        return month_of(whole_month, tz)
    current = month_of((_EPOCH + timedelta(microseconds=now)).astimezone(tz).isoformat()[:7], tz)
    if not start and not end:
        return current
    first = instant("from", start, tz) if start else current.start
    last = instant("to", end, tz) if end else now
    if first > last:
        raise PeriodError("from", f"The range is empty: {iso(first)} is after {iso(last)}.")
    return Period(first, last)

"""When a line of a bill begins and ends. Pure.

Florin's ends are exclusive. Many providers' are not: `2026-10-31` then means the whole day, and
`2026-10-31T23:59:59` the whole second.
"""

from __future__ import annotations

import re

from gateway.costs.periods import PeriodError, instant, iso
from gateway.costs.reconciliation.bill_cells import BillError
from gateway.units import DAY

_DATE = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_SECOND = 1_000_000
_MINUTE = 60 * _SECOND


def span(start: str, end: str, *, inclusive: bool) -> tuple[int, int]:
    """Unix microseconds; the end is exclusive. Raises BillError, PeriodError."""
    first, last = instant("start", start), instant("end", end)
    if inclusive:
        last = _after(end, last)
    if last > first:
        return first, last
    if not inclusive and last == first and _DATE.fullmatch(end):
        raise BillError(
            "start and end are the same day, and an end is read as exclusive. If this bill's ends are "
            "inclusive, import it with --end inclusive (API: end=inclusive)."
        )
    raise BillError("The line ends before it begins.")


def looks_inclusive(end: str) -> bool:
    """Whether an end that was read as exclusive is the last day of a month, or the last second of a
    minute."""
    try:
        last = instant("end", end)
    except PeriodError:
        return False
    if _DATE.fullmatch(end):
        return iso(last + DAY)[8:10] == "01"
    return _last_second(last)


def _after(text: str, time: int) -> int:
    """The end of the day or second that an inclusive end names."""
    if _DATE.fullmatch(text):
        return time + DAY
    return time - time % _MINUTE + _MINUTE if _last_second(time) else time


def _last_second(time: int) -> bool:
    return time % _MINUTE >= _MINUTE - _SECOND

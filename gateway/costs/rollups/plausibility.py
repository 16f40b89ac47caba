"""Bounds on the records and sums of an engine-hour. Pure.

The usage log's writer and reader enforce the same bounds; these checks cover whatever reached the ledger some
other way. One impossible record must not stop the roll-up of everything else: its engine-hour is set aside.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, FromClause, and_, case, func, literal

from gateway.metering.token_counts import MAX_CHOICES, MAX_GPUS, MAX_TOKENS_PER_CHOICE
from gateway.units import DAY, HOUR

MOST_TOKENS = MAX_TOKENS_PER_CHOICE * MAX_CHOICES
"""The most tokens of one record."""
MOST_FIGURE = 10**17
"""The most of any sum over an engine-hour: far above anything possible, far below the 64-bit limit."""
LONGEST = 366 * DAY
"""The longest attempt, in microseconds."""
_LAST = 4_102_444_800_000_000
"""The year 2100."""
_SHOWN = 3


class ImplausibleError(Exception):
    """An engine-hour has impossible content; the message says what, for a person."""


def check_records(records: Sequence[tuple[Any, ...]]) -> None:
    """`records`: tuples as in `posting.READ`. Raises ImplausibleError."""
    wrong = [reason for r in records if (reason := fault(r))]
    if wrong:
        more = f", and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
        raise ImplausibleError("; ".join(wrong[:_SHOWN]) + more)


def check_place(hour: int, gpu_count: int) -> None:
    """Raises ImplausibleError."""
    if not (type(hour) is int and 0 <= hour <= _LAST and hour % HOUR == 0):
        raise ImplausibleError(f"{hour} is not the start of an hour")
    if not (type(gpu_count) is int and 0 <= gpu_count <= MAX_GPUS):
        raise ImplausibleError(f"an engine cannot have {gpu_count} GPUs")


def check_figures(names: Iterable[str], figures: Iterable[Any]) -> None:
    """Sums that are to be stored. Raises ImplausibleError."""
    for name, value in zip(names, figures, strict=True):
        if not -MOST_FIGURE <= value <= MOST_FIGURE:
            raise ImplausibleError(f"its {name} sum to {value}, more than any engine can do in an hour")


def fault(record: tuple[Any, ...]) -> str:
    """What is wrong with a record, or an empty string. Reads only the first nine items of the tuple."""
    name, dispatched, ended, prompt, cached, completion, loads, _, reasoning = record[:9]
    if (
        type(prompt) is int
        and type(completion) is int
        and type(reasoning) is int
        and 0 <= prompt <= MOST_TOKENS
        and 0 <= completion <= MOST_TOKENS
        and 0 <= reasoning <= MOST_TOKENS
        and (cached is None or (type(cached) is int and 0 <= cached <= MOST_TOKENS))
        and type(loads) is int
        and 0 <= loads < 2**31
        and type(dispatched) is int
        and type(ended) is int
        and 0 <= dispatched <= _LAST
        and 0 <= ended <= min(dispatched + LONGEST, _LAST)
    ):
        return ""
    values: Mapping[str, Any] = {
        "prompt_tokens": prompt,
        "cached_tokens": cached,
        "completion_tokens": completion,
        "reasoning_tokens": reasoning,
        "adapter_loads": loads,
        "dispatched": dispatched,
        "ended": ended,
    }
    return f"record {name} is impossible: " + ", ".join(f"{k} {str(v)[:40]}" for k, v in values.items())


def storable(table: FromClause) -> ColumnElement[bool]:
    """The same bounds in SQL, for a table like `usage`: what the database can sum without overflowing
    64 bits."""
    c = table.c
    within = and_(
        c.prompt_tokens.between(0, MOST_TOKENS),
        c.completion_tokens.between(0, MOST_TOKENS),
        func.coalesce(c.cached_tokens, 0).between(0, MOST_TOKENS),
        c.n.between(0, MAX_CHOICES),
    )
    # CASE, because AND guarantees no order: never multiply values that are out of bounds.
    return case((within, c.prompt_tokens * c.n <= MOST_TOKENS), else_=literal(False)).is_(True)

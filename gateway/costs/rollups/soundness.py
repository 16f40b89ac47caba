"""What an engine-hour may be made of. Pure.

The usage log's writer and reader let nothing else in; this holds for what is in a ledger already, or came
another way. One record that cannot be must not stop everybody's books: its engine-hour is set aside.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, FromClause, and_, case, func, literal

from gateway.metering.ledger.ledger import HOUR
from gateway.metering.token_counts import MAX_CHOICES, MAX_GPUS, MAX_TOKENS_PER_CHOICE

MOST_TOKENS = MAX_TOKENS_PER_CHOICE * MAX_CHOICES
"""Of one record."""
MOST_FIGURE = 10**17
"""Of any sum over an engine-hour: far above what can be, far below where 64 bits end."""
LONGEST = 366 * 24 * HOUR
"""Of one attempt."""
_LAST = 4_102_444_800_000_000
"""The year 2100."""
_SHOWN = 3


class UnsoundError(Exception):
    """An engine-hour cannot be divided; the message says why, for a person."""


def check_records(records: Sequence[tuple[Any, ...]]) -> None:
    """`records`: tuples as in `posting.READ`. Raises UnsoundError."""
    wrong = [found for r in records if (found := fault(r))]
    if wrong:
        more = f", and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
        raise UnsoundError("; ".join(wrong[:_SHOWN]) + more)


def check_place(hour: int, gpu_count: int) -> None:
    """Raises UnsoundError."""
    if not (type(hour) is int and 0 <= hour <= _LAST and hour % HOUR == 0):
        raise UnsoundError(f"{hour} is not the beginning of an hour")
    if not (type(gpu_count) is int and 0 <= gpu_count <= MAX_GPUS):
        raise UnsoundError(f"an engine cannot have {gpu_count} GPUs")


def check_figures(names: Iterable[str], figures: Iterable[Any]) -> None:
    """Sums that are to be stored. Raises UnsoundError."""
    for name, value in zip(names, figures, strict=True):
        if not -MOST_FIGURE <= value <= MOST_FIGURE:
            raise UnsoundError(f"its {name} sum to {value}, which no engine can do in an hour")


def fault(record: tuple[Any, ...]) -> str:
    """What is wrong with a record, in words; empty: nothing. Of the tuple only the first nine."""
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
    return f"record {name} cannot be: " + ", ".join(f"{k} {str(v)[:40]}" for k, v in values.items())


def storable(table: FromClause) -> ColumnElement[bool]:
    """SQL of the same bounds, over a table like usage_records: what may be summed in a database without
    leaving its 64 bits."""
    c = table.c
    within = and_(
        c.prompt_tokens.between(0, MOST_TOKENS),
        c.completion_tokens.between(0, MOST_TOKENS),
        func.coalesce(c.cached_tokens, 0).between(0, MOST_TOKENS),
        c.n.between(0, MAX_CHOICES),
    )
    # CASE, because AND promises no order: a product of what is out of bounds must not be made.
    return case((within, c.prompt_tokens * c.n <= MOST_TOKENS), else_=literal(False)).is_(True)

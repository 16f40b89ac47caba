"""One flow of every kind, for tests of the store."""

from __future__ import annotations

from enum import IntEnum

from adapters.store.protocol.limits import Amounts, Flow
from gateway.tenants.limits.periods import flow_at
from gateway.tenants.terms import Window


class Place(IntEnum):
    """Where a flow is in amounts."""

    REQUESTS = 0
    TOKENS = 1
    TOKENS_PER_DAY = 2
    TOKENS_PER_MONTH = 3
    MONEY_PER_DAY = 4
    MONEY_PER_MONTH = 5
    TOKENS_PER_5H = 6


_COUNTED = (
    ("requests", Window.MINUTE),
    ("tokens", Window.MINUTE),
    ("tokens", Window.DAY),
    ("tokens", Window.MONTH),
    ("money", Window.DAY),
    ("money", Window.MONTH),
    ("tokens", Window.FIVE_HOURS),
)
NOTHING: Amounts = (0,) * len(Place)
MUCH = 10**9
NONE: Amounts = (MUCH,) * len(Place)
"""Limits that no test reaches."""
RATES = (Place.REQUESTS, Place.TOKENS)
BUDGETS = tuple(place for place in Place if place not in RATES)


def flows_at(ms: int) -> tuple[Flow, ...]:
    return tuple(flow_at(measure, window, "UTC", ms * 1000) for measure, window in _COUNTED)


def limits(**flows: int) -> Amounts:
    """`requests=10` and so on, by the names of Place."""
    values = list(NONE)
    for name, limit in flows.items():
        values[Place[name.upper()]] = limit
    return tuple(values)


def amounts(**flows: int) -> Amounts:
    values = list(NOTHING)
    for name, amount in flows.items():
        values[Place[name.upper()]] = amount
    return tuple(values)

"""A statement's amount divided by whose requests they were: by API key, end user, tag, cost centre or service
tier. What has no such name (the share of unused time, corrections, and what a rate card charges or credits
beside tokens) is a line of its own, so that the lines sum to the statement's amount exactly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from sqlalchemy import Connection

from gateway.costs.cost_lines import CostLine, read_lines
from gateway.costs.periods import Period
from gateway.costs.prices.book import PriceBook
from gateway.costs.selling.cards import RateCard
from gateway.costs.selling.posted import PRICED_BY, key_of, tokens_of
from gateway.costs.statement.items import Item
from gateway.units import Amount, Cents, apportioned, total

DIMENSION_NAMES = {
    "key": "API key", "end_user": "end user", "tag": "tag", "cost_centre": "cost centre",
    "service_tier": "service tier",
}  # fmt: skip  # one name a line says no more
"""Dimension → what the page calls it."""


@dataclass(frozen=True, slots=True)
class Division:
    dimension: str
    parts: tuple[Item, ...]
    """By name, in order; the empty name is of requests without one. They sum to the statement's usage."""
    unused_cents: Cents
    """The share of unused time."""
    other_cents: Cents
    """Corrections and, with a rate card, residency, dedicated GPUs, allowance, discount and minimum."""


@dataclass(frozen=True, slots=True)
class Undivided:
    """What is divided."""

    tenant: str
    period: Period
    usage: Sequence[Item]
    allocated: Sequence[Item]
    cents: Cents
    step: int = 1


def divide_statement(
    connection: Connection,
    book: PriceBook,
    dimension: str,
    statement: Undivided,
    card: RateCard | None,
    factor: Fraction,
) -> Division:
    """`card`: whose rates the amounts of the usage are at; None: at cost. `factor`: of the currency."""
    sums: dict[str, list[int]] = {}
    by = (dimension, *PRICED_BY)
    for line in read_lines(connection, book, statement.period, by, tenants=(statement.tenant,)):
        if line.bucket == "usage" and not line.correction:
            values = (line.requests, *tokens_of(line)[:3], _amount(line, card))
            before = sums.setdefault(line.keys[0], [0] * len(values))
            sums[line.keys[0]] = [a + b for a, b in zip(before, values, strict=True)]
    used, unused = (total(item.cents for item in items) for items in (statement.usage, statement.allocated))
    amounts = {name: values[-1] * factor for name, values in sums.items()}
    cents = apportioned(amounts, used, step=statement.step)
    parts = tuple(
        Item(name, "", requests, prompt, cached, output, cents[name])
        for name, (requests, prompt, cached, output, _) in sorted(sums.items())
    )
    return Division(dimension, parts, unused, Cents(statement.cents - used - unused))


def _amount(line: CostLine, card: RateCard | None) -> Amount:
    if card is not None:
        _, adapter, base_model = line.keys
        return card.list_price(key_of(line, adapter, base_model), tokens_of(line))
    assert line.cost is not None, "checked before"
    return line.cost

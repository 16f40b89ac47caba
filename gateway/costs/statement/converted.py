"""A statement's figures in another currency than the price book's: exact amounts times a dated exchange rate,
rounded once. What the close sealed stays in the price book's currency, and the statement names both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from sqlalchemy import Connection

from gateway.costs.closing.charging import units
from gateway.costs.closing.settlement import BILLED, CENT, rounded
from gateway.costs.periods import iso, month
from gateway.costs.prices.amounts import decimal_of
from gateway.costs.prices.exchange_rates import PLACES, ExchangeRate, chosen, read_exchange_rates

_PRICES = ("exact", "per_million", "per_hour", "monthly_minimum")
_MOST_PLACES = 24
"""Of a cost (15) times an exchange rate (9): exact."""


@dataclass(frozen=True, slots=True)
class Conversion:
    rate: ExchangeRate
    cents: int
    """The amount in the price book's currency."""

    @property
    def factor(self) -> Fraction:
        return Fraction(self.rate.rate_nanos, 10**PLACES)

    def document(self) -> dict[str, Any]:
        return {
            "currency": self.rate.currency,
            "amount_cents": self.cents,
            "rate": self.rate.document()["rate"],
            "valid_from": iso(self.rate.valid_from)[:10],
            "source": self.rate.source,
        }


def exchange_rate(
    connection: Connection, of: str, currency: str, target: str, *, now: int, tenant: str | None
) -> ExchangeRate:
    """That of the month's end, or the current one. `tenant`: whose key asks. Raises ExchangeRateError."""
    return chosen(read_exchange_rates(connection), currency, target, month(of).end, now, tenant)


def converted(document: Mapping[str, Any], factor: Fraction) -> dict[str, Any]:
    """A statement's document with other amounts; see `settlement` and `charging` for its form."""
    billed = {
        i: units(line["cost"]) * factor for i, line in enumerate(document["lines"]) if line["kind"] in BILLED
    }
    cents = _cents(sum(billed.values(), Fraction(0)))
    amounts = rounded(billed, cents) if billed else {}
    made = {
        **document,
        "amount_cents": cents,
        "lines": [
            {**line, "amount_cents": amounts.get(index)} for index, line in enumerate(document["lines"])
        ],
    }
    charges = document.get("charges")
    return made if charges is None else {**made, "charges": _charges(charges, factor)}


def _charges(charges: Mapping[str, Any], factor: Fraction) -> dict[str, Any]:
    parts = {index: units(line["exact"]) * factor for index, line in enumerate(charges["lines"])}
    cents = _cents(sum(parts.values(), Fraction(0)))
    amounts = rounded(parts, cents) if parts else {}
    lines = [
        {**_priced(line, factor), "amount_cents": amounts[index]}
        for index, line in enumerate(charges["lines"])
    ]
    return {**_priced(charges, factor), "amount_cents": cents, "lines": lines}


def _priced(line: Mapping[str, Any], factor: Fraction) -> dict[str, Any]:
    return {
        name: decimal_of(Fraction(value) * factor, _MOST_PLACES) if name in _PRICES else value
        for name, value in line.items()
    }


def _cents(amount: Fraction) -> int:
    """Rounded half up, as statements are."""
    return int((2 * amount + CENT) // (2 * CENT))

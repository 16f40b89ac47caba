"""A report in another currency than the price book's.

All amounts of a report are converted at one dated exchange rate: the one in force at the end of its period,
or now if the period has not ended. So parts still sum to the whole, exactly. The report names the rate.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from sqlalchemy import Connection

from gateway.costs.periods import instant, iso
from gateway.costs.prices.exchange_rates import chosen, read_exchange_rates
from gateway.units import decimal_of

_AMOUNTS = {"cost", "priced_cost", "allocated_cost", "priced_allocated_cost", "idleness_cost"}
_PRICES = "unit_prices"
"""Its decimals, at any depth, are amounts too."""
_OF_STATEMENTS = {"amount_cents", "allocated_amount_cents", "billed_cents"}
"""Left out: statements are in the price book's currency, and what they round is not rounded anew."""


def in_currency(
    connection: Connection, document: dict[str, Any], currency: str, now: int, *, tenant: str | None = None
) -> dict[str, Any]:
    """The report `document` in `currency`. `tenant`: whose own report it is. Raises ExchangeRateError if no
    rate is known."""
    if document["currency"] in {None, currency}:
        return document
    rates = read_exchange_rates(connection)
    rate = chosen(rates, document["currency"], currency, instant("to", document["to"]), now, tenant)
    factor = rate.factor
    begin = instant("from", document["from"])
    same = [r for r in rates if (r.currency, r.target) == (rate.currency, rate.target)]
    about = {
        "currency": rate.currency,
        "rate": rate.document()["rate"],
        "valid_from": iso(rate.valid_from)[:10],
        "source": rate.source,
        "changed_within": any(begin < r.valid_from <= rate.valid_from for r in same),
    }
    report: dict[str, Any] = _converted(document, factor)
    return {**report, "currency": currency, "exchange_rate": about}


def _converted(value: Any, factor: Fraction, *, amounts: bool = False) -> Any:
    if isinstance(value, list):
        return [_converted(part, factor, amounts=amounts) for part in value]
    if not isinstance(value, dict):
        return value
    kept = {name: part for name, part in value.items() if name not in _OF_STATEMENTS}
    return {name: _member(name, part, factor, amounts=amounts) for name, part in kept.items()}


def _member(name: str, value: Any, factor: Fraction, *, amounts: bool) -> Any:
    if isinstance(value, str):
        inside = amounts and name in {"input", "cached", "output"}
        return decimal_of(Fraction(value) * factor, 24) if inside or name in _AMOUNTS else value
    return _converted(value, factor, amounts=amounts or name == _PRICES)

"""A statement's figures in another currency than the price book's: exact amounts times a dated exchange rate,
rounded once. What the close sealed stays in the price book's currency, and the statement names both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from sqlalchemy import Connection

from gateway.costs.closing.documents import Charges, Credits, TenantStatement
from gateway.costs.closing.settlement import BILLED
from gateway.costs.periods import iso, month_of
from gateway.costs.prices.exchange_rates import ExchangeRate, chosen, read_exchange_rates
from gateway.units import CENT, Cents, apportioned, cents_of, decimal_of, rounded

_PRICES = ("exact", "per_million", "per_request", "per_hour", "unit_price", "monthly_minimum")
_MOST_PLACES = 24
"""A cost (15) times an exchange rate (9) is exact."""


@dataclass(frozen=True, slots=True)
class Conversion:
    rate: ExchangeRate
    cents: Cents
    """The amount in the price book's currency."""

    def document(self) -> dict[str, Any]:
        return {
            "currency": self.rate.currency,
            "amount_cents": self.cents,
            "rate": self.rate.document()["rate"],
            "valid_from": iso(self.rate.valid_from)[:10],
            "source": self.rate.source,
        }


def exchange_rate(
    connection: Connection,
    month: str,
    currency: str,
    target: str,
    *,
    now: int,
    tenant: str | None,
    known_at: int | None,
) -> ExchangeRate:
    """That of the month's end, or the current one. `tenant`: whose key asks. `known_at`: rates that were
    recorded later do not count, so that what is final stays as it is; if there was none, the first that was
    recorded since does. None: all count. Raises ExchangeRateError."""
    end, rates = month_of(month).end, read_exchange_rates(connection)
    if known_at is not None:
        pair = [r for r in rates if (r.currency, r.target) == (currency, target) and r.valid_from < end]
        rates = [r for r in pair if r.recorded_at <= known_at] or sorted(pair, key=lambda r: r.id)[:1]
    return chosen(rates, currency, target, end, now, tenant)


def converted(statement: TenantStatement, factor: Fraction, step: int) -> TenantStatement:
    """The statement with its amounts in cents of another currency, in whole steps; exact amounts stay in the
    price book's."""
    billed = {n: line.cost * factor for n, line in enumerate(statement.lines) if line.kind in BILLED}
    cents, amounts = _rounded(billed, step)
    price = statement.model_copy(
        update={
            "amount_cents": cents,
            "lines": tuple(
                line.model_copy(update={"amount_cents": amounts.get(n)})
                for n, line in enumerate(statement.lines)
            ),
            "charges": None if statement.charges is None else _charges(statement.charges, factor, step),
            "manual": tuple(
                line.model_copy(update={"amount_cents": cents_of(line.amount_cents * factor * CENT, step)})
                for line in statement.manual
            ),
        }
    )
    prepaid = statement.credits
    if prepaid is None:
        return price
    everything = prepaid.drawn_cents == statement.price_cents
    drawn = price.price_cents if everything else cents_of(prepaid.drawn_cents * factor * CENT, step)
    return price.model_copy(update={"credits": _credits(prepaid, factor, drawn, step)})


def _credits(prepaid: Credits, factor: Fraction, drawn: Cents, step: int) -> Credits:
    """`drawn`: converted. What is rounded goes into the closing balance."""
    parts = {n: part.cents * factor * CENT for n, part in enumerate(prepaid.draws)}
    draws = apportioned(parts, drawn, step=step)
    opening, granted, expired = (
        cents_of(cents * factor * CENT, step)
        for cents in (prepaid.opening_cents, prepaid.granted_cents, prepaid.expired_cents)
    )
    return Credits(
        opening_cents=opening,
        granted_cents=granted,
        drawn_cents=drawn,
        expired_cents=expired,
        closing_cents=Cents(opening + granted - drawn - expired),
        draws=tuple(part.model_copy(update={"cents": draws[n]}) for n, part in enumerate(prepaid.draws)),
    )


def _charges(charges: Charges, factor: Fraction, step: int) -> Charges:
    cents, amounts = _rounded({n: line.exact * factor for n, line in enumerate(charges.lines)}, step)
    lines = tuple(
        line.model_copy(update={"amount_cents": amounts[n]}) for n, line in enumerate(charges.lines)
    )
    return charges.model_copy(update={"amount_cents": cents, "lines": lines})


def _rounded(amounts: Mapping[int, Fraction], step: int) -> tuple[Cents, dict[int, Cents]]:
    cents = cents_of(sum(amounts.values(), Fraction(0)), step)
    return cents, rounded(amounts, cents, step=step) if amounts else {}


def charges_document(charges: Charges, factor: Fraction) -> dict[str, Any]:
    """In the currency that `factor` converts to, with exact prices and amounts."""
    document = _priced(charges.document(), factor)
    return document | {"lines": [_line(line, factor) for line in document["lines"]]}


def _line(line: Mapping[str, Any], factor: Fraction) -> dict[str, Any]:
    tiers = {"tiers": [_priced(tier, factor) for tier in line["tiers"]]} if "tiers" in line else {}
    return _priced(line, factor) | tiers


def _priced(part: Mapping[str, Any], factor: Fraction) -> dict[str, Any]:
    return {
        name: decimal_of(Fraction(value) * factor, _MOST_PLACES) if name in _PRICES else value
        for name, value in part.items()
    }

"""Lines of a bill in other currencies than the price book's, converted at the exchange rate of the period's
end. Amounts stay exact; the invoice is rounded once, as a whole."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from gateway.costs.periods import iso
from gateway.costs.prices.exchange_rates import ExchangeRate, rate_at
from gateway.costs.reconciliation.bill_files import BillLine
from gateway.units import decimal_of


@dataclass(slots=True)
class Converted:
    """Mutable while the lines are read."""

    lines: list[BillLine] = field(default_factory=list)
    """In the price book's currency, but those for whose currency no rate is known."""
    rates: dict[str, ExchangeRate] = field(default_factory=dict)
    """By the currency of the lines that were converted."""

    def document(self) -> list[dict[str, Any]]:
        """The rates."""
        return [
            {
                "currency": name,
                "target": rate.target,
                "rate": rate.document()["rate"],
                "valid_from": iso(rate.valid_from)[:10],
                "source": rate.source,
            }
            for name, rate in sorted(self.rates.items())
        ]


def converted(lines: Iterable[BillLine], currency: str, rates: Sequence[ExchangeRate], end: int) -> Converted:
    """`end`: of the period, exclusive."""
    result = Converted()
    for line in lines:
        rate = None
        if line.currency != currency:
            rate = result.rates.get(line.currency) or rate_at(rates, line.currency, currency, end - 1)
        if rate is None:
            result.lines.append(line)
            continue
        result.rates[line.currency] = rate
        cost = Fraction(line.cost) * rate.factor
        result.lines.append(replace(line, cost=str(cost), currency=currency))
    return result


def totals(lines: Iterable[BillLine], start: int, end: int) -> dict[str, str]:
    """By currency, what lines cost within a period, in proportion to time."""
    sums: dict[str, Fraction] = {}
    for line in lines:
        inside = min(line.end, end) - max(line.start, start)
        if inside > 0:
            cost = Fraction(line.cost) * Fraction(inside, line.end - line.start)
            sums[line.currency] = sums.get(line.currency, Fraction(0)) + cost
    return {name: decimal_of(cost) for name, cost in sorted(sums.items())}

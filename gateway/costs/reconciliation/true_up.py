"""True-up: a month's cost becomes the invoice's, with its credits, taxes and commitments. Pure.

The books have the provisioned GPU cost at list price. Each cause of a difference becomes a line of its own,
which belongs to no tenant. Books and lines sum to the invoice, exactly and in cents.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from gateway.costs.reconciliation.bill_differences import KINDS, BillDifference
from gateway.units import NANO, decimal_of

OTHER_MONTHS = "posted_in_other_months"
CENTS = "cents"
_REASONS = {
    OTHER_MONTHS: "corrections of this month that are posted to later months, less those of earlier months "
    "posted to this one",
    CENTS: "rounding to cents",
}


@dataclass(frozen=True, slots=True)
class Books:
    """A month's cost before the true-up."""

    closed: bool
    cost: Fraction
    cents: int
    """As closed and stated; for an open month, `cost` rounded."""
    seal: str | None
    """The period hash of a closed month; None: it is open."""


def open_books(own: Fraction) -> Books:
    return Books(closed=False, cost=own, cents=cents_of(own), seal=None)


def cents_of(amount: Fraction) -> int:
    """Rounded half to even."""
    return round(amount * 100)


def true_up(
    books: Books, own: Fraction, invoice: Fraction, differences: Sequence[BillDifference]
) -> dict[str, Any]:
    """`own`: cost of the month's hours as known now. `invoice` less `own` is the sum of `differences`, one of
    each kind."""
    exact = [
        (difference.kind, difference.reason, Fraction(difference.nano, NANO), difference.cost)
        for difference in differences
    ]
    if own != books.cost:
        exact.insert(0, (OTHER_MONTHS, _REASONS[OTHER_MONTHS], Fraction(0), own - books.cost))
    assert books.cost + sum((cost for *_, cost in exact), Fraction(0)) == invoice
    cents, rest = _cents([cost for *_, cost in exact], cents_of(invoice) - books.cents)
    if rest:
        exact.append((CENTS, _REASONS[CENTS], Fraction(0), Fraction(0)))
        cents.append(rest)
    return {
        "books": "closed" if books.closed else "open",
        "seal": books.seal,
        "list_cost": decimal_of(books.cost),
        "list_amount_cents": books.cents,
        "lines": [
            {
                "kind": kind,
                "reason": reason,
                "tenant": None,
                "gpu_hours": decimal_of(hours),
                "cost": decimal_of(cost),
                "amount_cents": amount,
            }
            for (kind, reason, hours, cost), amount in zip(exact, cents, strict=True)
        ],
        "invoice_cost": decimal_of(invoice),
        "invoice_amount_cents": cents_of(invoice),
    }


def _cents(costs: Sequence[Fraction], total: int) -> tuple[list[int], int]:
    """Largest remainder method: cents of each cost that sum to `total`, and what they cannot take without
    being off by more than a cent."""
    floors = [int(cost * 100 // 1) for cost in costs]
    left = total - sum(floors)
    inexact = [index for index, cost in enumerate(costs) if cost * 100 != floors[index]]
    inexact.sort(key=lambda index: (-(costs[index] * 100 % 1), index))
    given = inexact[: max(left, 0)]
    for index in given:
        floors[index] += 1
    return floors, left - len(given)


assert not set(_REASONS) & set(KINDS)

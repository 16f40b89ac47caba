"""From the provisioned GPU cost at list price, which is the whole of a report, to what the month costs.

A month that was trued up costs its invoice: the true-up's lines lead there, and one line more if usage,
prices or corrections have changed the books since. Until then, what commitments cost for hours that no engine
used is known already: it is a line for each commitment, and the month is expected to cost at least the sum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from sqlalchemy import Connection

from gateway.costs.commitments.commitment import CommitmentUse
from gateway.costs.commitments.commitment_report import unused_cost
from gateway.costs.commitments.commitment_store import uses_of
from gateway.costs.periods import Period, complete_hours
from gateway.costs.reconciliation.true_up_store import read_true_ups
from gateway.units import NANO, apportioned, decimal_of

_PLACES = 18
"""To which amortized upfront payments are rounded before cents are made of them."""
_SINCE = "usage, prices and corrections since the true-up"
_UNUSED = "reserved capacity that no engine used"


def invoiced(
    connection: Connection, month: str, provisioned: Mapping[str, Any], currency: str | None, now: int
) -> dict[str, Any] | None:
    """What leads from the `provisioned` time of a report over a month to what the month costs; None if
    nothing does, or if a price is missing. The lines and the provisioned cost sum to it, exactly and in
    cents."""
    if provisioned["cost"] is None:
        return None
    for true_up in read_true_ups(connection, month)[:1]:
        return _trued_up(true_up, provisioned, currency)
    within = complete_hours(month, now)
    return _expected([use for use in uses_of(connection, within) if use.unused], within, provisioned)


def _trued_up(
    true_up: Mapping[str, Any], provisioned: Mapping[str, Any], currency: str | None
) -> dict[str, Any] | None:
    if true_up["currency"] != currency:
        return None
    names = ("kind", "reason", "gpu_hours", "cost", "amount_cents")
    lines = [{name: line[name] for name in names} for line in true_up["lines"]]
    cost = Fraction(true_up["list_cost"]) - Fraction(provisioned["cost"])
    cents = true_up["list_amount_cents"] - provisioned["amount_cents"]
    if cost or cents:
        lines.append(_line("since_true_up", _SINCE, Fraction(0), cost, cents))
    return {
        "state": "trued_up",
        "recorded_at": true_up["recorded_at"],
        "lines": lines,
        "cost": true_up["invoice_cost"],
        "amount_cents": true_up["invoice_amount_cents"],
    }


def _expected(
    uses: Sequence[CommitmentUse], within: Period, provisioned: Mapping[str, Any]
) -> dict[str, Any] | None:
    if not uses:
        return None
    costs = [unused_cost(use, within) for use in uses]
    total = Fraction(provisioned["cost"]) + sum(costs, Fraction(0))
    amount = round(total * 100)
    units = {index: round(cost * 10**_PLACES) for index, cost in enumerate(costs)}
    cents = apportioned(units, amount - provisioned["amount_cents"], 10 ** (_PLACES - 2))
    return {
        "state": "expected",
        "recorded_at": None,
        "lines": [
            _line("reserved_unused", _reason(use), _unused_hours(use), cost, cents[index])
            for index, (use, cost) in enumerate(zip(uses, costs, strict=True))
        ],
        "cost": decimal_of(total),
        "amount_cents": amount,
    }


def _reason(use: CommitmentUse) -> str:
    return f"{_UNUSED}: commitment {use.commitment.description or use.commitment.id}"


def _unused_hours(use: CommitmentUse) -> Fraction:
    return Fraction(sum(use.unused.values()), NANO)


def _line(kind: str, reason: str, hours: Fraction, cost: Fraction, cents: int) -> dict[str, Any]:
    return {
        "kind": kind,
        "reason": reason,
        "gpu_hours": decimal_of(hours),
        "cost": decimal_of(cost),
        "amount_cents": cents,
    }

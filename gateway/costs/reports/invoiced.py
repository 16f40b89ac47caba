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

from gateway.costs.closing.settlement import apportioned
from gateway.costs.commitments.commitment import NANO, CommitmentUse
from gateway.costs.commitments.commitment_report import unused_cost
from gateway.costs.commitments.commitment_store import uses_of
from gateway.costs.periods import HOUR, Period, month
from gateway.costs.prices.amounts import decimal_of
from gateway.costs.reconciliation.true_up_store import read_true_ups

_PLACES = 18
"""To which amortised upfront payments are rounded before cents are made of them."""
_SINCE = "usage, prices and corrections since the true-up"
_UNUSED = "reserved capacity that no engine used"


def invoiced(
    connection: Connection, of: str, whole: Mapping[str, Any], currency: str | None, now: int
) -> dict[str, Any] | None:
    """What leads from the `whole` of a report over the month `of` to what the month costs; None if nothing
    does, or if a price is missing. Lines and whole sum to it, exactly and in cents."""
    if whole["cost"] is None:
        return None
    for one in read_true_ups(connection, of)[:1]:
        return _trued_up(one, whole, currency)
    within = Period(month(of).start, max(month(of).start, min(month(of).end, now - now % HOUR)))
    return _expected([one for one in uses_of(connection, within) if one.unused], within, whole)


def _trued_up(
    one: Mapping[str, Any], whole: Mapping[str, Any], currency: str | None
) -> dict[str, Any] | None:
    if one["currency"] != currency:
        return None
    names = ("kind", "reason", "gpu_hours", "cost", "amount_cents")
    lines = [{name: line[name] for name in names} for line in one["lines"]]
    cost = Fraction(one["list_cost"]) - Fraction(whole["cost"])
    cents = one["list_amount_cents"] - whole["amount_cents"]
    if cost or cents:
        lines.append(_line("since_true_up", _SINCE, Fraction(0), cost, cents))
    return {
        "state": "trued_up",
        "at": one["at"],
        "lines": lines,
        "cost": one["invoice_cost"],
        "amount_cents": one["invoice_amount_cents"],
    }


def _expected(
    uses: Sequence[CommitmentUse], within: Period, whole: Mapping[str, Any]
) -> dict[str, Any] | None:
    if not uses:
        return None
    costs = [unused_cost(one, within) for one in uses]
    total = Fraction(whole["cost"]) + sum(costs, Fraction(0))
    amount = round(total * 100)
    units = {index: round(cost * 10**_PLACES) for index, cost in enumerate(costs)}
    cents = apportioned(units, amount - whole["amount_cents"], 10 ** (_PLACES - 2))
    return {
        "state": "expected",
        "at": None,
        "lines": [
            _line("reserved_unused", _reason(one), _unused_hours(one), cost, cents[index])
            for index, (one, cost) in enumerate(zip(uses, costs, strict=True))
        ],
        "cost": decimal_of(total),
        "amount_cents": amount,
    }


def _reason(one: CommitmentUse) -> str:
    return f"{_UNUSED}: commitment {one.commitment.description or one.commitment.id}"


def _unused_hours(one: CommitmentUse) -> Fraction:
    return Fraction(sum(one.unused.values()), NANO)


def _line(kind: str, reason: str, hours: Fraction, cost: Fraction, cents: int) -> dict[str, Any]:
    return {
        "kind": kind,
        "reason": reason,
        "gpu_hours": decimal_of(hours),
        "cost": decimal_of(cost),
        "amount_cents": cents,
    }

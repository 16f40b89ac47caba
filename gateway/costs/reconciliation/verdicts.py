"""Verdicts on the lines of a reconciliation. Pure.

A cause that is identified is not a cost that is accepted. A difference is *matched* if Florin expects it (a
recorded commitment), *accepted* if a person accepted exactly this amount, else *identified*, or
*unidentified* without a known cause. Only the first two reconcile.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import Any

from gateway.costs.merkle import canonical
from gateway.costs.periods import iso
from gateway.units import NANO, decimal_of

_DIGITS = 8
"""Hexadecimal digits that distinguish the lines of a month: thousands at most."""


class Verdict(StrEnum):
    MATCHED = "matched"
    ACCEPTED = "accepted"
    IDENTIFIED = "identified"
    UNIDENTIFIED = "unidentified"


@dataclass(frozen=True, slots=True)
class Amounts:
    """What a line is about: either GPU time and cost, or tokens."""

    nano: int = 0
    cost: str = "0.00"
    """As it is shown: an exact decimal, or one of 18 places."""
    tokens: int = 0

    def document(self) -> dict[str, Any]:
        if self.tokens:
            return {"tokens": self.tokens}
        return {"gpu_hours": decimal_of(Fraction(self.nano, NANO)), "cost": self.cost}


@dataclass(frozen=True, slots=True)
class Acceptance:
    by: str
    """Id of the key."""
    accepted_at: int
    """Unix microseconds, UTC."""
    reason: str
    amounts: Amounts
    """Those of the line when it was accepted."""


def line_id(month: str, *names: str) -> str:
    """`2026-10-8f3b2c91`: the same for the same difference, whatever its amount."""
    digest = hashlib.sha256(canonical([month, *names])).hexdigest()
    return f"{month}-{digest[:_DIGITS]}"


def verdict(
    amounts: Amounts, acceptance: Acceptance | None, *, identified: bool, matched: bool = False
) -> Verdict:
    """An acceptance holds for the amounts that were accepted: if they change, it no longer does."""
    if matched or amounts == Amounts():
        return Verdict.MATCHED
    if acceptance is not None and acceptance.amounts == amounts:
        return Verdict.ACCEPTED
    return Verdict.IDENTIFIED if identified else Verdict.UNIDENTIFIED


def overall(verdicts: Iterable[Verdict]) -> Verdict:
    """The worst of them; `matched` of none."""
    order = list(Verdict)
    return max(verdicts, key=order.index, default=Verdict.MATCHED)


def described(
    line: str, amounts: Amounts, acceptances: Mapping[str, Acceptance], *, identified: bool, matched: bool
) -> dict[str, Any]:
    """What a document says of a line: `line`, `verdict`, and `accepted`: by whom, when, why, and whether the
    line still has the amounts that were accepted (`current`)."""
    acceptance = acceptances.get(line)
    reached = verdict(amounts, acceptance, identified=identified, matched=matched)
    accepted = None
    if acceptance is not None and reached is not Verdict.MATCHED:
        accepted = {
            "by": acceptance.by,
            "recorded_at": iso(acceptance.accepted_at),
            "reason": acceptance.reason,
            **acceptance.amounts.document(),
            "current": reached is Verdict.ACCEPTED,
        }
    return {"line": line, "verdict": reached.value, "accepted": accepted}

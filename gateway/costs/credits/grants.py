"""Prepaid credits: grants to a tenant, and what its months draw of them. Pure.

A grant pays for whole months, from its first to its last. A month draws what its statement comes to before
tax, from the grant with the lowest priority number first, then from the one that expires first, then from the
oldest. What is left of a grant after its last month expires with it. Nothing is made or lost: what was
granted is what was drawn, what expired and what is left.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from gateway.costs.periods import iso
from gateway.units import Cents, decimal_text, total

NONE = Cents(0)
PRIORITY = 50
"""The priority of a grant that names none."""
_NEVER = "9"
"""After every month."""


@dataclass(frozen=True, slots=True)
class Grant:
    id: int
    tenant: str
    cents: Cents
    begins: str
    """The first month that it pays for."""
    ends: str
    """The last one; empty: it does not expire."""
    priority: int
    reason: str
    reference: str
    """Who granted it calls it that, and grants it once; empty: nothing."""
    granted_at: int
    granted_by: str
    drawn: Cents = NONE
    """By closed months."""

    @property
    def terms(self) -> tuple[Any, ...]:
        return self.tenant, self.cents, self.begins, self.ends, self.priority, self.reason

    def document(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "tenant": self.tenant,
            "amount": decimal_text(self.cents, 2),
            "begins": self.begins,
            "ends": self.ends or None,
            "priority": self.priority,
            "reason": self.reason,
            "reference": self.reference or None,
            "granted_at": iso(self.granted_at),
            "granted_by": self.granted_by,
            "drawn": decimal_text(self.drawn, 2),
        }


@dataclass(frozen=True, slots=True)
class Holding:
    """What a month can draw of a grant: a part of the terms of a month that is closed."""

    id: int
    reason: str
    cents: Cents
    """What earlier months have left."""
    begins: str
    ends: str
    priority: int


Holdings = Mapping[str, tuple[Holding, ...]]
"""By tenant."""


@dataclass(frozen=True, slots=True)
class Draw:
    grant: int
    reason: str
    cents: Cents


@dataclass(frozen=True, slots=True)
class MonthCredits:
    """Opening and granted are what drawn, expired and closing sum to."""

    opening: Cents
    granted: Cents
    draws: tuple[Draw, ...]
    expired: Cents

    @property
    def available(self) -> Cents:
        return Cents(self.opening + self.granted)

    @property
    def drawn(self) -> Cents:
        return total(draw.cents for draw in self.draws)

    @property
    def closing(self) -> Cents:
        return Cents(self.available - self.drawn - self.expired)


def holdings_in(month: str, grants: Iterable[Grant]) -> Holdings:
    """What a month can draw, if all months before it are closed."""
    by_tenant: dict[str, tuple[Holding, ...]] = {}
    for grant in grants:
        left = Cents(grant.cents - grant.drawn)
        if left and grant.begins <= month <= (grant.ends or _NEVER):
            holding = Holding(grant.id, grant.reason, left, grant.begins, grant.ends, grant.priority)
            by_tenant[grant.tenant] = (*by_tenant.get(grant.tenant, ()), holding)
    return by_tenant


def draw(holdings: Iterable[Holding], month: str, due: Cents) -> MonthCredits:
    """`due`: what the statement comes to. Draws nothing if it is below zero."""
    ordered = sorted(holdings, key=lambda h: (h.priority, h.ends or _NEVER, h.id))
    draws, left = [], max(due, 0)
    for holding in ordered:
        if cents := min(holding.cents, left):
            draws.append(Draw(holding.id, holding.reason, Cents(cents)))
            left -= cents
    drawn = {part.grant: part.cents for part in draws}
    return MonthCredits(
        opening=total(h.cents for h in ordered if h.begins < month),
        granted=total(h.cents for h in ordered if h.begins == month),
        draws=tuple(draws),
        expired=total(Cents(h.cents - drawn.get(h.id, 0)) for h in ordered if h.ends == month),
    )


def after(grants: Iterable[Grant], drawn: Mapping[int, Cents]) -> list[Grant]:
    """The grants after another month. `drawn`: by it, by grant."""
    return [replace(grant, drawn=Cents(grant.drawn + drawn.get(grant.id, 0))) for grant in grants]


def terms_of(holdings: Holdings) -> dict[str, list[dict[str, Any]]]:
    """For the terms of a month that is cut off."""
    return {tenant: [asdict(holding) for holding in own] for tenant, own in holdings.items()}


def holdings_from(terms: Mapping[str, Iterable[Mapping[str, Any]]]) -> Holdings:
    return {tenant: tuple(Holding(**holding) for holding in own) for tenant, own in terms.items()}

"""Which card a tenant has in a month.

A card has a name (`standard`, `acme-2026`) and versions, each valid from a month until the card's next
version. A tenant has the card that is assigned to it from a month until its next assignment; a tenant without
an assignment of its own has the default card, and without that pays the cost. Nothing is edited: a row that
replaces an earlier one of the same month is added after it.

Months are whole, so that the allowance and the minimum of a month are those of one card.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, TypeVar

from gateway.costs.periods import iso, month_of
from gateway.costs.prices.jumps import check_jump
from gateway.costs.selling.cards import RateCard, RateCardConflictError, RateCardError, check_currency

T = TypeVar("T")

DEFAULT = ""
"""The tenant of the default assignment."""
ENDED = "-"
"""The card of an assignment that ends the tenant's own; no card can have the name."""


@dataclass(frozen=True, slots=True)
class Assignment:
    tenant: str
    """DEFAULT: every tenant without an assignment of its own."""
    card: str
    """Empty: none, so the tenant pays the cost. ENDED: as a tenant that has no assignment of its own."""
    valid_from: str
    recorded_at: int

    def document(self) -> dict[str, Any]:
        return {
            "tenant": self.tenant or None,
            "card": None if self.card == ENDED else self.card or None,
            "ended": self.card == ENDED,
            "valid_from": self.valid_from,
            "recorded_at": iso(self.recorded_at),
        }


class RateCards:
    """Cards and assignments, indexed for look-ups by tenant and month. Later rows replace earlier ones of the
    same month, so both are in the order in which they were recorded."""

    def __init__(self, cards: Sequence[RateCard] = (), assignments: Sequence[Assignment] = ()) -> None:
        self.cards = tuple(cards)
        self.assignments = tuple(assignments)
        self._versions: dict[str, dict[str, RateCard]] = {}
        for card in cards:
            self._versions.setdefault(card.name, {})[card.valid_from] = card
        self._assigned: dict[str, dict[str, Assignment]] = {}
        for assignment in assignments:
            own = self._assigned.setdefault(assignment.tenant, {})
            for month in [month for month in own if month > assignment.valid_from]:
                if ENDED in {assignment.card, own[month].card}:
                    del own[month]  # an end is for good, until another tenant of the name is assigned a card
            own[assignment.valid_from] = assignment

    @classmethod
    def of_rows(cls, rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> Self:
        """From what a closed month keeps."""
        return cls(
            [RateCard.of_row(row) for row in rows.get("cards", ())],
            [Assignment(**row) for row in rows.get("assignments", ())],
        )

    @property
    def tenants(self) -> list[str]:
        """Those with an assignment of their own, ever."""
        return sorted(self._assigned.keys() - {DEFAULT})

    def charged(self, month: str) -> list[str]:
        """Tenants with an assignment of their own that pay a minimum in a month, even without usage."""
        cards = {tenant: self.card(tenant, month) for tenant in self.tenants if self._own(tenant, month)}
        return [tenant for tenant, card in cards.items() if card is not None and card.minimum_micros]

    def _own(self, tenant: str, month: str) -> bool:
        """Whether it has a card by an assignment of its own."""
        own = _valid(self.assignments_of(tenant), month)
        return own is not None and own.card != ENDED

    def ends_after(self, tenant: str, month: str) -> bool:
        """Whether a tenant that was removed had this assignment."""
        return any(own.card == ENDED and start > month for start, own in self.assignments_of(tenant).items())

    def versions(self, name: str) -> Mapping[str, RateCard]:
        """The versions of a card, by the month from which each is valid."""
        return self._versions.get(name, {})

    def assignments_of(self, tenant: str) -> Mapping[str, Assignment]:
        """Its own, by the month from which each is valid."""
        return self._assigned.get(tenant, {})

    def version(self, name: str, month: str) -> RateCard | None:
        """The version of a card that is valid in a month."""
        return _valid(self._versions.get(name, {}), month)

    def assigned(self, tenant: str, month: str) -> Assignment | None:
        """The assignment that counts for a tenant in a month: its own, else the default."""
        own = _valid(self._assigned.get(tenant, {}), month)
        if own is None or own.card == ENDED:
            return _valid(self._assigned.get(DEFAULT, {}), month)
        return own

    def card(self, tenant: str, month: str) -> RateCard | None:
        """What a tenant pays by in a month; None: it pays the cost."""
        assignment = self.assigned(tenant, month)
        return None if assignment is None or not assignment.card else self.version(assignment.card, month)


def in_force_since(cards: RateCards, tenant: str, month: str) -> RateCards:
    """What counts for a tenant from a month on: the assignments and versions in force then, and later
    ones."""
    first = [_valid(cards.assignments_of(name), month) for name in (tenant, DEFAULT)]
    assigned = [a for a in cards.assignments if a.tenant in {tenant, DEFAULT}]
    assigned = [a for a in assigned if a.valid_from > month or a in first]
    starts = {name: cards.version(name, month) for name in {a.card for a in assigned}}
    versions = [
        card
        for card in cards.cards
        if card.name in starts and (card.valid_from > month or _same_start(card, starts[card.name]))
    ]
    return RateCards(versions, assigned)


def _same_start(card: RateCard, first: RateCard | None) -> bool:
    return first is not None and card.valid_from == first.valid_from


def version_to_add(
    known: RateCards, card: RateCard, *, default_start: bool, opened: str
) -> tuple[RateCard, bool]:
    """The version as it is to be recorded, and whether it is new. `default_start`: no month was given; then
    the first version is valid from `card.valid_from`, and a later one from the month after, because a price
    that customers know does not change within a month. `opened`: the first month that is not closed.

    Raises RateCardError, RateCardConflictError."""
    last = known.version(card.name, "9999-12")
    if default_start and last is not None:
        if last.terms == card.terms:
            return last, False
        card = replace(card, valid_from=iso(month_of(card.valid_from).end)[:7])
    same = known.versions(card.name).get(card.valid_from)
    if same is not None and same.terms == card.terms:
        return same, False
    _check_open(card.valid_from, opened)
    check_currency(card.currency, (c.currency for c in known.cards))
    if same is not None and not card.reason:
        raise RateCardConflictError(
            f"Rate card {card.name} already has other terms from {card.valid_from}. To replace them, say "
            "why (reason); the earlier terms are kept. Or let the new ones begin with another month."
        )
    return card if same is not None else replace(card, reason=""), True


def check_card_jump(known: RateCards, card: RateCard) -> None:
    """Compare the prices of tokens with those of the card's version before. Raises UnconfirmedJumpError."""
    earlier = [v for month, v in sorted(known.versions(card.name).items()) if month < card.valid_from]
    if not earlier:
        return
    known_lines = {line.name: line for line in (earlier[-1].default_line, *earlier[-1].lines)}
    for line in (card.default_line, *card.lines):
        if (old := known_lines.get(line.name)) is None:
            continue
        by = f"{card.name}, line {line.name}," if line.name else card.name
        for what in ("input", "cached", "output"):
            before, after = (getattr(version, f"{what}_micros") for version in (old, line))
            check_jump(f"A million {what} tokens by {by} in {card.currency}", before, after, places=6)


def assignment_to_add(known: RateCards, new: Assignment, *, opened: str) -> tuple[Assignment, bool]:
    """The assignment as it is to be recorded, and whether it is new. `opened`: as above.

    Raises RateCardError."""
    if new.card and known.version(new.card, new.valid_from) is None:
        raise RateCardError("card", _no_card(known, new))
    standing = known.assignments_of(new.tenant).get(new.valid_from)
    same = standing is not None and standing.card == new.card
    if standing is not None and same and not known.ends_after(new.tenant, new.valid_from):
        return standing, False
    _check_open(new.valid_from, opened)
    return new, True


def _no_card(known: RateCards, new: Assignment) -> str:
    names = sorted({card.name for card in known.cards})
    if new.card in names:
        first = min(known.versions(new.card))
        return f"Rate card {new.card} is valid from {first}, so it cannot be assigned from {new.valid_from}."
    listed = f"The rate cards are {', '.join(names)}." if names else "Add one: florin rate-card add NAME …"
    return f"There is no rate card {new.card[:70]!r}. {listed}"


def _check_open(first: str, opened: str) -> None:
    """Closed months never change. Raises RateCardError."""
    if first < opened:
        raise RateCardError(
            "valid_from", f"{first} is closed and keeps its prices: let it begin with {opened} or later."
        )


def _valid(by_month: Mapping[str, T], month: str) -> T | None:
    """The entry of the latest month that is not after `month`."""
    names = [name for name in by_month if name <= month]
    return by_month[max(names)] if names else None

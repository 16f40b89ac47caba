"""Rate cards and their assignments in a file: what is to be added to those that there are. Pure.

Like prices, they are never edited and never pruned: closed months are computed from them. So a file need not
list what holds no more, and a version or an assignment that it does not name stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from gateway.costs.prices.jumps import UnconfirmedJumpError
from gateway.costs.selling.assignments import (
    ENDED,
    Assignment,
    RateCards,
    assignment_to_add,
    check_card_jump,
    version_to_add,
)
from gateway.costs.selling.cards import RateCard, RateCardConflictError, RateCardError
from gateway.costs.selling.operations import assignment_of, card_of
from gateway.costs.selling.schemas import NewAssignment, NewRateCard
from gateway.declarative.operations.actions import PlannedAction, compare
from gateway.declarative.operations.document import Document
from gateway.errors import FlorinError

EVERY_TENANT = "every other tenant"
_REFUSED = (RateCardError, RateCardConflictError, FlorinError)


@dataclass(frozen=True, slots=True)
class Selling:
    """What there is."""

    cards: RateCards = field(default_factory=RateCards)
    opened: str = ""
    """The first month that is not closed."""


def card_spec(card: RateCard) -> NewRateCard:
    fields = card.document()
    names = NewRateCard.model_fields.keys() - {"reason"}
    return NewRateCard.model_validate({name: fields[name] for name in names})


def assignment_spec(assignment: Assignment) -> NewAssignment:
    return NewAssignment.model_construct(
        tenant=assignment.tenant or None, card=assignment.card or None, valid_from=assignment.valid_from
    )


def cards_in_force(cards: RateCards) -> Iterator[NewRateCard]:
    """Every version that no other replaced, by name and month."""
    for name in sorted({card.name for card in cards.cards}):
        for _, card in sorted(cards.versions(name).items()):
            yield card_spec(card)


def assignments_in_force(cards: RateCards, tenants: Iterable[str]) -> Iterator[NewAssignment]:
    """Likewise. First those of every tenant without its own; then of `tenants`, since others are gone."""
    for tenant in ("", *sorted(tenants)):
        for _, assignment in sorted(cards.assignments_of(tenant).items()):
            if assignment.card != ENDED:  # of an earlier tenant of the name
                yield assignment_spec(assignment)


def plan_selling(
    there: Selling, document: Document, clock: int, *, confirmed: bool = True
) -> list[PlannedAction | None]:
    """None: it stands already."""
    actions: list[PlannedAction | None] = []
    cards = there.cards
    for card in document.rate_cards or ():
        action, cards = _card(cards, card, clock, there.opened, there.cards if not confirmed else None)
        actions.append(action)
    for assigned in document.rate_card_assignments or ():
        action, cards = _assignment(cards, assigned, clock, there.opened)
        actions.append(action)
    return actions


def _card(
    cards: RateCards, spec: NewRateCard, clock: int, opened: str, unlike: RateCards | None
) -> tuple[PlannedAction | None, RateCards]:
    """`unlike`: the cards from whose prices an unconfirmed one must not be too far."""
    id_ = f"{spec.name} from {spec.valid_from or 'now'}"
    try:
        card = card_of(spec, clock)
        new, fresh = version_to_add(cards, card, default_start=spec.valid_from is None, opened=opened)
        if unlike is not None and fresh:
            check_card_jump(unlike, new)
    except UnconfirmedJumpError as error:
        refused = PlannedAction("refuse", "rate_card", id_, reason=str(error), code="confirmation_required")
        return refused, cards
    except _REFUSED as error:
        return PlannedAction("refuse", "rate_card", id_, reason=str(error)), cards
    if not fresh:
        return None, cards
    replaced = cards.versions(new.name).get(new.valid_from)
    goal = card_spec(new).model_copy(update={"valid_from": spec.valid_from, "reason": new.reason})
    old = None if replaced is None else card_spec(replaced)
    return compare("rate_card", id_, old, goal), RateCards((*cards.cards, new), cards.assignments)


def _assignment(
    cards: RateCards, spec: NewAssignment, clock: int, opened: str
) -> tuple[PlannedAction | None, RateCards]:
    tenant = spec.tenant or EVERY_TENANT
    id_ = f"of {tenant} from {spec.valid_from or 'now'}"
    try:
        assignment = assignment_of(spec, clock)
        if spec.valid_from is None and _holds(cards, assignment):
            return None, cards
        new, fresh = assignment_to_add(cards, assignment, opened=opened)
    except _REFUSED as error:
        return PlannedAction("refuse", "rate_card_assignment", id_, reason=str(error)), cards
    if not fresh:
        return None, cards
    replaced = cards.assignments_of(new.tenant).get(new.valid_from)
    goal = assignment_spec(new).model_copy(update={"valid_from": spec.valid_from})
    old = None if replaced is None or replaced.card == ENDED else assignment_spec(replaced)
    action = compare("rate_card_assignment", id_, old, goal)
    return action, RateCards(cards.cards, (*cards.assignments, new))


def _holds(cards: RateCards, assignment: Assignment) -> bool:
    """Whether the tenant's own assignment of this month is to the same card, and goes on."""
    own = cards.assigned(assignment.tenant, assignment.valid_from)
    same = own is not None and (own.tenant, own.card) == (assignment.tenant, assignment.card)
    return same and not cards.ends_after(assignment.tenant, assignment.valid_from)

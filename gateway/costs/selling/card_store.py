"""Reads and extends the rate cards and their assignments in the ledger."""

from __future__ import annotations

from dataclasses import asdict, fields, replace
from typing import Any

from sqlalchemy import Connection, Table, insert, select

from gateway.costs.periods import iso, month
from gateway.costs.prices.price_store import read_prices
from gateway.costs.prices.repricing import opened_at
from gateway.costs.selling.cards import (
    DEFAULT,
    Assignment,
    RateCard,
    RateCardConflictError,
    RateCardError,
    RateCards,
    check_currency,
)
from gateway.metering.ledger.audit_log import record
from gateway.metering.ledger.ledger import Ledger, next_batch
from gateway.metering.ledger.schema import rate_card_assignments, rate_cards

_CARD = tuple(f.name for f in fields(RateCard))
_ASSIGNMENT = tuple(f.name for f in fields(Assignment))


def list_cards(ledger: Ledger) -> RateCards:
    """Raises LedgerUnavailableError."""
    with ledger.read() as connection:
        return read_cards(connection)


def read_cards(connection: Connection) -> RateCards:
    """`list_cards` within the caller's transaction."""
    return RateCards.of_rows(card_rows(connection))


def card_rows(connection: Connection) -> dict[str, list[dict[str, Any]]]:
    """Every row, in the order in which it was recorded: what a closed month keeps."""
    return {
        "cards": _rows(connection, rate_cards, _CARD),
        "assignments": _rows(connection, rate_card_assignments, _ASSIGNMENT),
    }


def _rows(connection: Connection, table: Table, names: tuple[str, ...]) -> list[dict[str, Any]]:
    query = select(*(table.c[name] for name in names)).order_by(table.c.id)
    return [dict(zip(names, row, strict=True)) for row in connection.execute(query)]


def add_card(
    ledger: Ledger, card: RateCard, *, default_start: bool, actor: str = ""
) -> tuple[RateCard, bool]:
    """Add a version of a card. Returns it, and whether it is new. `default_start`: no month was given; then
    the first version is valid from `card.valid_from`, and a later one from the month after, because a price
    that customers know does not change within a month.

    `actor`: recorded in the audit log; empty to record nothing.

    Raises RateCardError, RateCardConflictError, LedgerUnavailableError."""
    with ledger.write() as connection:
        next_batch(connection)  # so that a month is closed either before or after
        known = read_cards(connection)
        last = known.version(card.name, "9999-12")
        if default_start and last is not None:
            if last.terms == card.terms:
                return last, False
            card = replace(card, valid_from=iso(month(card.valid_from).end)[:7])
        same = next((c for c in reversed(known.cards) if _place(c) == _place(card)), None)
        if same is not None and same.terms == card.terms:
            return same, False
        _check_open(connection, "valid_from", card.valid_from)
        prices = read_prices(connection)
        check_currency(card.currency, [*(p.currency for p in prices[:1]), *(c.currency for c in known.cards)])
        if same is not None and not card.reason:
            raise RateCardConflictError(
                f"Rate card {card.name} already has other terms from {card.valid_from}. To replace them, say "
                "why (reason); the earlier terms are kept. Or let the new ones begin with another month."
            )
        if same is None:
            card = replace(card, reason="")
        connection.execute(insert(rate_cards), [asdict(card)])
        record(connection, actor, "rate_card.add", card.name, card.document(), card.recorded_at)
        return card, True


def _place(card: RateCard) -> tuple[str, str]:
    return card.name, card.valid_from


def assign(ledger: Ledger, new: Assignment, *, actor: str = "") -> tuple[Assignment, bool]:
    """Assign a card to a tenant, or to all without an assignment of their own. Returns the assignment, and
    whether it is new. The caller has checked that the tenant exists.

    Raises RateCardError, RateCardConflictError, LedgerUnavailableError."""
    with ledger.write() as connection:
        next_batch(connection)  # as above
        known = read_cards(connection)
        if new.card and known.version(new.card, new.valid_from) is None:
            raise RateCardError("card", _no_card(known, new))
        held = next(
            (
                a
                for a in reversed(known.assignments)
                if (a.tenant, a.valid_from) == (new.tenant, new.valid_from)
            ),
            None,
        )
        if held is not None and held.card == new.card:
            return held, False
        _check_open(connection, "valid_from", new.valid_from)
        connection.execute(insert(rate_card_assignments), [asdict(new)])
        subject = new.tenant or "default"
        record(connection, actor, "rate_card.assign", subject, new.document(), new.recorded_at)
        return new, True


def _no_card(known: RateCards, new: Assignment) -> str:
    names = sorted({card.name for card in known.cards})
    if new.card in names:
        first = min(card.valid_from for card in known.cards if card.name == new.card)
        return f"Rate card {new.card} is valid from {first}, so it cannot be assigned from {new.valid_from}."
    listed = f"The rate cards are {', '.join(names)}." if names else "Add one: florin rate-card add NAME …"
    return f"There is no rate card {new.card[:70]!r}. {listed}"


def _check_open(connection: Connection, param: str, first: str) -> None:
    """Closed months never change. Raises RateCardError."""
    opened = opened_at(connection)
    if month(first).start < opened:
        raise RateCardError(
            param,
            f"{first} is closed and keeps its prices: let it begin with {iso(opened)[:7]} or later.",
        )


def assignments_of(cards: RateCards, tenant: str | None) -> list[Assignment]:
    """All, or those of one tenant and the default."""
    wanted = {tenant, DEFAULT}
    return [one for one in cards.assignments if tenant is None or one.tenant in wanted]

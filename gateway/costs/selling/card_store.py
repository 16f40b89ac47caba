"""Reads and extends the rate cards and their assignments in the ledger."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

from sqlalchemy import Connection, Table, insert, select

from gateway.costs.periods import iso, month_of
from gateway.costs.prices.price_store import read_prices
from gateway.costs.prices.repricing import opened_at
from gateway.costs.selling.assignments import (
    DEFAULT,
    ENDED,
    Assignment,
    RateCards,
    assignment_to_add,
    check_card_jump,
    version_to_add,
)
from gateway.costs.selling.cards import MORE, RateCard, check_currency
from gateway.metering.ledger.audit_log import record
from gateway.metering.ledger.chain import seal
from gateway.metering.ledger.continuity import next_batch
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import rate_card_assignments, rate_cards

_CARD = (*(f.name for f in fields(RateCard) if f.name not in MORE), "more")
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
    cards = _rows(connection, rate_cards, _CARD)
    return {
        # `more` only where there is some: months that were closed before there was any stay as they are
        "cards": [{name: v for name, v in row.items() if v or name != "more"} for row in cards],
        "assignments": _rows(connection, rate_card_assignments, _ASSIGNMENT),
    }


def _rows(connection: Connection, table: Table, names: tuple[str, ...]) -> list[dict[str, Any]]:
    query = select(*(table.c[name] for name in names)).order_by(table.c.id)
    return [dict(zip(names, row, strict=True)) for row in connection.execute(query)]


def add_card(
    ledger: Ledger, card: RateCard, *, default_start: bool, actor: str = "", confirmed: bool = True
) -> tuple[RateCard, bool]:
    """Add a version of a card: see `version_to_add`. Returns it, and whether it is new.

    `actor`: recorded in the audit log; empty to record nothing. `confirmed`: False refuses a likely slip.

    Raises RateCardError, RateCardConflictError, UnconfirmedJumpError, LedgerUnavailableError."""
    with ledger.write() as connection:
        next_batch(connection)  # so that a month is closed either before or after
        known = read_cards(connection)
        added, new = version_to_add(known, card, default_start=default_start, opened=opened_month(connection))
        if new:
            if not confirmed:
                check_card_jump(known, added)
            check_currency(card.currency, [p.currency for p in read_prices(connection)[:1]])
            connection.execute(insert(rate_cards), [added.row()])
            seal(connection, "rate_card", added.name)
            record(connection, actor, "rate_card.add", added.name, added.document(), added.recorded_at)
        return added, new


def opened_month(connection: Connection) -> str:
    """The first month that is not closed, or one before all others."""
    return iso(opened_at(connection))[:7]


def assign(ledger: Ledger, new: Assignment, *, actor: str = "") -> tuple[Assignment, bool]:
    """Assign a card to a tenant, or to all without an assignment of their own. Returns the assignment, and
    whether it is new. The caller has checked that the tenant exists.

    Raises RateCardError, RateCardConflictError, LedgerUnavailableError."""
    with ledger.write() as connection:
        next_batch(connection)  # as above
        assignment, fresh = assignment_to_add(read_cards(connection), new, opened=opened_month(connection))
        if fresh:
            connection.execute(insert(rate_card_assignments), [asdict(assignment)])
            seal(connection, "assignment", assignment.tenant)
            subject = assignment.tenant or "default"
            record(
                connection, actor, "rate_card.assign", subject, assignment.document(), assignment.recorded_at
            )
        return assignment, fresh


def end_assignment(ledger: Ledger, tenant: str, *, now: int, actor: str) -> None:
    """A tenant is gone: it has no card of its own from next month on. Does nothing if it has none by then.

    Raises LedgerUnavailableError."""
    month = iso(month_of(iso(now)[:7]).end)[:7]
    with ledger.write() as connection:
        next_batch(connection)  # as above
        own = read_cards(connection).assignments_of(tenant)
        if not own or own[max(own)].card == ENDED:
            return
        end = Assignment(tenant, ENDED, month, now)
        connection.execute(insert(rate_card_assignments), [asdict(end)])
        record(connection, actor, "rate_card.assign", tenant, end.document(), now)


def assignments_of(cards: RateCards, tenant: str | None) -> list[Assignment]:
    """All, or those of one tenant and the default."""
    names = {tenant, DEFAULT}
    return [assignment for assignment in cards.assignments if tenant is None or assignment.tenant in names]

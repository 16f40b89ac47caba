"""Compare a document with the present registry, and export the registry as a document."""

from __future__ import annotations

import asyncio
from typing import Final

from adapters.errors import ConflictError
from gateway.costs.prices.price import Price
from gateway.costs.prices.price_store import read_prices
from gateway.costs.selling.card_store import opened_month, read_cards
from gateway.declarative.operations import current
from gateway.declarative.operations.actions import ApplyPlan
from gateway.declarative.operations.document import Document
from gateway.declarative.operations.plan import plan
from gateway.declarative.operations.selling import Selling
from gateway.errors import FlorinError
from gateway.metering.ledger.ledger import Ledger
from gateway.operations.state import State
from gateway.operations.transaction import Json
from gateway.tenants.directory import Key, Role

_CONTROLLED: Final = frozenset({"florin", "tenants", "adapters"})
"""What a document that a controller applies may have."""


async def export_registry(state: State) -> Json:
    return await asyncio.to_thread(current.export, await _current(state))


def check_scope(key: Key, document: Document, *, prune: bool) -> None:
    """Raises FlorinError for what a controller must not change: a key that it made could do more than its
    own."""
    if key.role is Role.CONTROLLER and (prune or document.model_fields_set - _CONTROLLED):
        raise FlorinError(
            "insufficient_role",
            f"A key of role {key.role} applies tenants and adapters only, and prunes nothing.",
        )


async def plan_apply(
    state: State, document: Document, *, prune: bool, agreed: str | None, actor: str, confirmed: bool
) -> ApplyPlan:
    """Plan the changes that bring the registry to `document`. `prune` also removes objects missing from the
    sections that the document has. `confirmed`: False refuses prices that are likely slips. `agreed` is the
    digest of the plan that the operator confirmed. Raises ConflictError if the plan would be another now."""
    asking = actor.removeprefix("key:") if actor.startswith("key:") else ""
    planned = await asyncio.to_thread(
        plan,
        await _current(state),
        document,
        prune=prune,
        asking=asking,
        clock=state.clock.now(),
        confirmed=confirmed,
    )
    if agreed not in (None, planned.digest):
        raise ConflictError("The registry has changed since this plan was made: look at the new one first.")
    return planned


async def _current(state: State) -> current.Current:
    """In a thread: of 10,000 adapters, it takes tenths of a second."""
    book, selling = await asyncio.to_thread(_read, state.ledger)
    registry = current.Snapshot.take(state.catalog, state.directory)
    return await asyncio.to_thread(current.read, registry, book, selling)


def _read(ledger: Ledger) -> tuple[list[Price], Selling]:
    with ledger.read() as connection:
        return read_prices(connection), Selling(read_cards(connection), opened_month(connection))

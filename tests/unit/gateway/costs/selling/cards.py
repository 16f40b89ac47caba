"""Rate cards for tests."""

from __future__ import annotations

from typing import Any

from gateway.costs.selling.card_store import add_card, assign
from gateway.costs.selling.cards import Assignment, RateCard
from gateway.metering.ledger.ledger import Ledger

STANDARD: dict[str, Any] = {
    "name": "standard", "valid_from": "2026-10", "currency": "USD", "input_micros": 600_000,
    "cached_micros": 60_000, "output_micros": 2_400_000, "minimum_micros": 0, "free_input": 0,
    "free_cached": 0, "free_output": 0, "reason": "", "recorded_at": 1,
}  # fmt: skip  # one name a line says no more


def card(**changes: Any) -> RateCard:
    return RateCard(**{**STANDARD, **changes})


def sell(ledger: Ledger, tenant: str, since: str = "2026-10", **changes: Any) -> RateCard:
    """Add a card and assign it."""
    made, _ = add_card(ledger, card(valid_from=since, **changes), default_start=False)
    assign(ledger, Assignment(tenant, made.name, since, 2))
    return made

"""Rate cards for tests."""

from __future__ import annotations

from typing import Any

from gateway.costs.selling.assignments import Assignment
from gateway.costs.selling.card_lines import NO_TOKENS, PriceKey, Tokens
from gateway.costs.selling.card_store import add_card, assign
from gateway.costs.selling.cards import RateCard
from gateway.costs.selling.charges import MonthCharges
from gateway.costs.selling.charges import charge as charge_month
from gateway.costs.selling.residency import Residency
from gateway.metering.ledger.ledger import Ledger

STANDARD: dict[str, Any] = {
    "name": "standard", "valid_from": "2026-10", "currency": "USD", "input_micros": 600_000,
    "cached_micros": 60_000, "output_micros": 2_400_000, "minimum_micros": 0, "free_input": 0,
    "free_cached": 0, "free_output": 0, "reason": "", "recorded_at": 1,
}  # fmt: skip  # one name a line says no more


def card(**changes: Any) -> RateCard:
    return RateCard(**{**STANDARD, **changes})


def charge(
    card: RateCard, tokens: Tokens, resident: Residency | None = None, batch: Tokens = NO_TOKENS
) -> MonthCharges:
    """A month of usage that no line tells apart. `batch`: part of the tokens."""
    rest = Tokens(*(a - b for a, b in zip(tokens, batch, strict=True)))
    used = {PriceKey(): rest, PriceKey(service_tier="batch"): batch}
    return charge_month(card, "2026-10", used, resident)


def sell(ledger: Ledger, tenant: str, since: str = "2026-10", **changes: Any) -> RateCard:
    """Add a card and assign it."""
    made, _ = add_card(ledger, card(valid_from=since, **changes), default_start=False)
    assign(ledger, Assignment(tenant, made.name, since, 2))
    return made

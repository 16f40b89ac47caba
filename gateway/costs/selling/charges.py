"""What a month's tokens and resident adapters cost a customer by its rate card. Pure and exact: amounts are
whole numbers of 10**-15 of the currency, as costs are; cents are made on the statement.

A month is charged as a whole: tokens of each kind, less the free ones, times the rate, with a discount on
those of batches; the hours of resident adapters times theirs; then, if the sum is below the card's minimum,
the difference. So what late records change in a closed month is the difference of two such sums, with the
month's own card, allowance, residency and minimum; it is charged in the month in which they are posted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from gateway.costs.prices.amounts import decimal_text
from gateway.costs.selling.cards import RateCard
from gateway.costs.selling.residency import Residency, hours_text

KINDS = ("input", "cached", "output")
SKUS = {"input": "tokens/input", "cached": "tokens/cached-input", "output": "tokens/output"}
"""Kind of token → its SKU. They depend on nothing that changes: not on GPUs, adapters or cards."""
MINIMUM_SKU = "monthly-minimum"
BATCH_SKU = "batch-discount"
RESIDENCY_SKU = "adapter-residency"
_PER_TOKEN = 1000
"""A millionth per million tokens is 10**-12 a token."""
_PER_MICRO = 10**9
_PER_MILLI_HOUR = 10**6
"""A millionth per hour is 10**-9 a thousandth of an hour."""


class Tokens(NamedTuple):
    """Tokens of delivered answers."""

    input: int = 0
    """Computed: without cached ones."""
    cached: int = 0
    output: int = 0


NO_TOKENS = Tokens()


def added(one: Tokens, other: Tokens) -> Tokens:
    return Tokens(*(a + b for a, b in zip(one, other, strict=True)))


@dataclass(frozen=True, slots=True)
class KindCharge:
    """The tokens of one kind."""

    kind: str
    tokens: int
    free: int
    """Of these, not charged."""
    rate_micros: int

    @property
    def amount(self) -> int:
        return (self.tokens - self.free) * self.rate_micros * _PER_TOKEN


@dataclass(frozen=True, slots=True)
class MonthCharges:
    """One month of one tenant."""

    card: RateCard
    kinds: tuple[KindCharge, ...]
    top_up: int
    """What is missing to the minimum."""
    resident: Residency = field(default_factory=dict)
    """Adapters that are charged for being resident: empty if the card has no price for it."""
    batch: Tokens = NO_TOKENS
    """Part of the tokens: those of batches, if the card has another price for them."""

    @property
    def batch_discount(self) -> int:
        """The amount, 0 or less. The free tokens are those of other requests first, which cost more."""
        charged = (
            max(0, min(count, kind.tokens - kind.free)) * kind.rate_micros
            for kind, count in zip(self.kinds, self.batch, strict=True)
        )
        return -sum(charged) * (100 - self.card.batch_percent) * _PER_TOKEN // 100

    @property
    def residency(self) -> int:
        """The amount for `resident`."""
        return residency_price(self.card, sum(self.resident.values()))

    @property
    def amount(self) -> int:
        tokens = sum(kind.amount for kind in self.kinds) + self.batch_discount
        return tokens + self.residency + self.top_up


def charge(
    card: RateCard, tokens: Tokens, resident: Residency | None = None, batch: Tokens = NO_TOKENS
) -> MonthCharges:
    """A month's charges. Tokens below zero (more corrected away than there were) count as none. `resident`:
    the tenant's adapters. `batch`: part of the tokens."""
    free = (card.free_input, card.free_cached, card.free_output)
    kinds = tuple(
        KindCharge(kind, max(count, 0), min(most, max(count, 0)), micros)
        for kind, count, most, micros in zip(KINDS, tokens, free, rates_of(card), strict=True)
    )
    made = MonthCharges(
        card,
        kinds,
        0,
        dict(resident or {}) if card.residency_micros else {},
        batch if card.batch_percent < 100 else NO_TOKENS,
    )
    return replace(made, top_up=max(card.minimum_micros * _PER_MICRO - made.amount, 0))


def residency_price(card: RateCard, milli_hours: int) -> int:
    """In 10**-15 of the currency."""
    return milli_hours * card.residency_micros * _PER_MILLI_HOUR


def rates_of(card: RateCard) -> tuple[int, int, int]:
    """Millionths per million tokens, in the order of KINDS."""
    return card.input_micros, card.cached_micros, card.output_micros


def list_price(card: RateCard, tokens: Tokens) -> int:
    """Tokens times rates, before allowance and minimum, in 10**-15 of the currency."""
    return sum(count * micros for count, micros in zip(tokens, rates_of(card), strict=True)) * _PER_TOKEN


@dataclass(frozen=True, slots=True)
class MonthCorrection:
    """What records that came late changed in an earlier month."""

    before: MonthCharges
    after: MonthCharges

    @property
    def tokens(self) -> Tokens:
        pairs = zip(self.after.kinds, self.before.kinds, strict=True)
        return Tokens(*(new.tokens - old.tokens for new, old in pairs))

    @property
    def amount(self) -> int:
        return self.after.amount - self.before.amount


@dataclass(frozen=True, slots=True)
class TenantMonth:
    """Everything that a tenant pays for a month: the month itself, and corrections of earlier ones that are
    posted to it."""

    current: MonthCharges | None
    """None: no card in this month, so the cost is charged, and the share of unused time."""
    corrections: Mapping[str, MonthCorrection] = field(default_factory=dict)
    """Month → what changed; months with a card only."""
    corrected_cost: Mapping[str, int] = field(default_factory=dict)
    """Month without a card → what changed in its cost; only where `current` or another correction has a card:
    otherwise the cost-based settlement has it all."""
    cost: int = 0
    """Of the month itself, including allocated unused time: charged if there is no card."""

    @property
    def amount(self) -> int:
        """10**-15 of the currency."""
        own = self.cost if self.current is None else self.current.amount
        return own + sum(c.amount for c in self.corrections.values()) + sum(self.corrected_cost.values())


def exact(amount: int) -> str:
    return decimal_text(amount, 15)


def price_id(card: RateCard, kind: str) -> str:
    """The price of a SKU: `standard/2026-11/input`."""
    return f"{card.name}/{card.valid_from}/{kind}"


def kind_document(card: RateCard, kind: KindCharge) -> dict[str, Any]:
    return {
        "sku": SKUS[kind.kind],
        "price": price_id(card, kind.kind),
        "kind": kind.kind,
        "tokens": kind.tokens,
        "free_tokens": kind.free,
        "per_million": decimal_text(kind.rate_micros, 6),
    }


def batch_document(charges: MonthCharges) -> dict[str, Any]:
    return {
        "kind": "batch_discount",
        "sku": BATCH_SKU,
        "price": price_id(charges.card, "batch"),
        "input_tokens": charges.batch.input,
        "cached_tokens": charges.batch.cached,
        "output_tokens": charges.batch.output,
        "batch_percent": charges.card.batch_percent,
    }


def residency_document(charges: MonthCharges) -> dict[str, Any]:
    """Hours times price, and the hours of each adapter."""
    return {
        "kind": "residency",
        "sku": RESIDENCY_SKU,
        "price": price_id(charges.card, "residency"),
        "hours": hours_text(sum(charges.resident.values())),
        "per_hour": decimal_text(charges.card.residency_micros, 6),
        "adapters": [
            {"adapter": adapter, "hours": hours_text(hours)}
            for adapter, hours in sorted(charges.resident.items())
        ],
    }

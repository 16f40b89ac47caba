"""What a month's tokens and resident adapters cost a customer by its rate card. Pure and exact: cents are
made on the statement.

A month is charged as a whole: tokens of each kind, less the free ones, times the rate, with a discount on
those of batches; the hours of resident adapters times theirs; then, if the sum is below the card's minimum,
the difference. So what late records change in a closed month is the difference of two such sums, with the
month's own card, allowance, residency and minimum; it is charged in the month in which they are posted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal, NamedTuple

from gateway.costs.selling.cards import RateCard
from gateway.costs.selling.residency import Residency
from gateway.units import NOTHING, Amount, Micros, MilliHours, total, worth

Kind = Literal["input", "cached", "output"]
KINDS: Final[tuple[Kind, Kind, Kind]] = ("input", "cached", "output")
SKUS: Final[Mapping[Kind, str]] = {
    "input": "tokens/input",
    "cached": "tokens/cached-input",
    "output": "tokens/output",
}
"""Kind of token → its SKU. They depend on nothing that changes: not on GPUs, adapters or cards."""
MINIMUM_SKU = "monthly-minimum"
BATCH_SKU = "batch-discount"
RESIDENCY_SKU = "adapter-residency"
_PER_TOKEN = 1000
"""A millionth per million tokens is 1000 units of an amount a token."""
_PER_MILLI_HOUR = 10**6
"""A millionth per hour is 10**6 units of an amount a thousandth of an hour."""


class Tokens(NamedTuple):
    """Tokens of delivered answers."""

    input: int = 0
    """Computed: without cached ones."""
    cached: int = 0
    output: int = 0


NO_TOKENS = Tokens()


def added(tokens: Tokens, other: Tokens) -> Tokens:
    return Tokens(*(a + b for a, b in zip(tokens, other, strict=True)))


@dataclass(frozen=True, slots=True)
class KindCharge:
    """The tokens of one kind."""

    kind: Kind
    tokens: int
    free: int
    """Those that are not charged."""
    rate_micros: Micros

    @property
    def amount(self) -> Amount:
        return Amount((self.tokens - self.free) * self.rate_micros * _PER_TOKEN)


@dataclass(frozen=True, slots=True)
class MonthCharges:
    """One month of one tenant."""

    card: RateCard
    kinds: tuple[KindCharge, ...]
    top_up: Amount
    """What is missing to the minimum."""
    resident: Residency = field(default_factory=dict)
    """Adapters that are charged for being resident: empty if the card has no price for it."""
    batch: Tokens = NO_TOKENS
    """Part of the tokens: those of batches, if the card has another price for them."""

    @property
    def batch_discount(self) -> Amount:
        """The amount, 0 or less. The free tokens are those of other requests first, which cost more."""
        charged = (
            max(0, min(count, kind.tokens - kind.free)) * kind.rate_micros
            for kind, count in zip(self.kinds, self.batch, strict=True)
        )
        return Amount(-sum(charged) * (100 - self.card.batch_percent) * _PER_TOKEN // 100)

    @property
    def residency(self) -> Amount:
        """The amount for `resident`."""
        return residency_price(self.card.residency_micros, total(self.resident.values()))

    @property
    def amount(self) -> Amount:
        tokens = sum(kind.amount for kind in self.kinds) + self.batch_discount
        return Amount(tokens + self.residency + self.top_up)


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
    charges = MonthCharges(
        card,
        kinds,
        Amount(0),
        dict(resident or {}) if card.residency_micros else {},
        batch if card.batch_percent < 100 else NO_TOKENS,
    )
    return replace(charges, top_up=Amount(max(worth(card.minimum_micros) - charges.amount, 0)))


def residency_price(per_hour: Micros, hours: MilliHours) -> Amount:
    return Amount(hours * per_hour * _PER_MILLI_HOUR)


def rates_of(card: RateCard) -> tuple[Micros, Micros, Micros]:
    """Per million tokens, in the order of KINDS."""
    return card.input_micros, card.cached_micros, card.output_micros


def tokens_price(rates: tuple[Micros, Micros, Micros], tokens: Tokens) -> Amount:
    """`rates`: per million tokens of each kind."""
    return Amount(sum(count * rate for count, rate in zip(tokens, rates, strict=True)) * _PER_TOKEN)


def list_price(card: RateCard, tokens: Tokens) -> Amount:
    """Before allowance and minimum."""
    return tokens_price(rates_of(card), tokens)


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
    def amount(self) -> Amount:
        return Amount(self.after.amount - self.before.amount)


@dataclass(frozen=True, slots=True)
class TenantMonth:
    """Everything that a tenant pays for a month: the month itself, and corrections of earlier ones that are
    posted to it."""

    current: MonthCharges | None
    """None: no card in this month, so the cost is charged, and the share of unused time."""
    corrections: Mapping[str, MonthCorrection] = field(default_factory=dict)
    """Month → what changed; months with a card only."""
    corrected_cost: Mapping[str, Amount] = field(default_factory=dict)
    """Month without a card → what changed in its cost; only where `current` or another correction has a card:
    otherwise the cost-based settlement has it all."""
    cost: Amount = NOTHING
    """The cost of the month itself, including allocated unused time: charged if there is no card."""

    @property
    def amount(self) -> Amount:
        own = self.cost if self.current is None else self.current.amount
        corrections = sum(correction.amount for correction in self.corrections.values())
        return Amount(own + corrections + sum(self.corrected_cost.values()))


def price_id(card: RateCard, kind: str) -> str:
    """The price of a SKU: `standard/2026-11/input`."""
    return f"{card.name}/{card.valid_from}/{kind}"

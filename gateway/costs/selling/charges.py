"""What a month's usage and resident adapters cost a customer by its rate card. Pure and exact: cents are made
on the statement.

A month is charged as a whole, line by line of the card: tokens and requests of each kind, less the free ones,
by the price and its tiers, with a discount on tokens of batches; the hours of resident adapters, and the
GPU-hours of engines that are dedicated to the customer, times theirs.
Then the card's discount is taken off; and if what is left is below its minimum, the difference is charged. So
what late records change in a closed month is the difference of two such sums, with the month's own card,
allowance, residency and minimum; it is charged in the month in which they are posted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from gateway.costs.selling.card_lines import (
    NO_TOKENS,
    CardLine,
    Kind,
    KindPrice,
    PriceKey,
    Tokens,
    added,
)
from gateway.costs.selling.cards import RateCard
from gateway.costs.selling.dedicated import GpuHours
from gateway.costs.selling.residency import Residency
from gateway.metering.records import BATCH
from gateway.units import NOTHING, Amount, Micros, MilliHours, total, worth

SKUS: Final[Mapping[Kind, str]] = {
    "input": "tokens/input",
    "cached": "tokens/cached-input",
    "output": "tokens/output",
    "reasoning": "tokens/reasoning",
    "requests": "requests",
}
"""Kind → its SKU. They depend on nothing that changes: not on GPUs, adapters or cards, and of a card's lines
only on their names: see `line_sku`."""
MINIMUM_SKU = "monthly-minimum"
BATCH_SKU = "batch-discount"
RESIDENCY_SKU = "adapter-residency"
DEDICATED_SKU = "dedicated-gpus"
DISCOUNT_SKU = "discount"
_PER_MILLI_HOUR = 10**6
"""A millionth per hour is 10**6 units of an amount a thousandth of an hour."""


@dataclass(frozen=True, slots=True)
class KindCharge:
    """The tokens of one kind, or the requests."""

    price: KindPrice
    quantity: int
    free: int
    """Those that are not charged."""

    @property
    def kind(self) -> Kind:
        return self.price.kind

    @property
    def amount(self) -> Amount:
        return self.price.amount(self.quantity - self.free)

    @property
    def listed(self) -> int:
        """At the list price."""
        return self.price.worth(self.quantity, self.price.micros)

    def off(self, quantity: int, percent: int) -> int:
        """What `percent` less for a part of the quantity takes off. The free part is of the others first,
        which cost more."""
        charged = self.quantity - self.free
        return self.amount * max(0, min(quantity, charged)) * percent // (100 * charged) if charged else 0


@dataclass(frozen=True, slots=True)
class LineCharges:
    """What is charged by one line of a card."""

    line: CardLine
    kinds: tuple[KindCharge, ...]
    batch: Tokens = NO_TOKENS
    """Part of the tokens: those of batches, if the card has another price for them."""
    resident: Residency = field(default_factory=dict)
    """Adapters that are charged for being resident: empty if that has no price."""
    per_hour: Micros = Micros(0)  # noqa: RUF009  # an integer
    dedicated: GpuHours = field(default_factory=dict)
    """GPU-hours of dedicated engines: empty if they have no price."""
    per_gpu_hour: Micros = Micros(0)  # noqa: RUF009  # an integer

    @property
    def used(self) -> Amount:
        """The amount for `kinds`."""
        return total(kind.amount for kind in self.kinds)

    @property
    def residency(self) -> Amount:
        """The amount for `resident`."""
        return hours_price(self.per_hour, total(self.resident.values()))

    @property
    def gpu_time(self) -> Amount:
        """The amount for `dedicated`."""
        return hours_price(self.per_gpu_hour, total(self.dedicated.values()))

    def batch_discount(self, percent: int) -> Amount:
        """The amount, 0 or less. `percent`: what batches' tokens cost."""
        parts = (kind.off(self.batch_quantity(kind.kind), 100 - percent) for kind in self.of_tokens)
        return Amount(-sum(parts))

    @property
    def of_tokens(self) -> tuple[KindCharge, ...]:
        return tuple(kind for kind in self.kinds if kind.kind != "requests")

    def batch_quantity(self, kind: Kind) -> int:
        return self.line.quantity(kind, self.batch)


@dataclass(frozen=True, slots=True)
class MonthCharges:
    """One month of one tenant."""

    card: RateCard
    lines: tuple[LineCharges, ...]
    """The default line first, then those that were used."""
    unlisted: Amount = NOTHING
    """How what batches have lines of their own for differs from its price by the other lines, by which it is
    listed where batches are not told apart."""
    discount_percent: int = 0
    top_up: Amount = NOTHING
    """What is missing to the minimum."""

    @property
    def kinds(self) -> tuple[KindCharge, ...]:
        return tuple(kind for line in self.lines for kind in line.kinds)

    @property
    def used(self) -> Amount:
        """The amount for `kinds`."""
        return total(line.used for line in self.lines)

    @property
    def listed(self) -> Amount:
        """The same at list prices, whatever the tier of service."""
        return Amount(sum(kind.listed for kind in self.kinds) - self.unlisted)

    @property
    def batch_discount(self) -> Amount:
        return total(line.batch_discount(self.card.batch_percent) for line in self.lines)

    @property
    def resident(self) -> Residency:
        return {adapter: hours for line in self.lines for adapter, hours in line.resident.items()}

    @property
    def residency(self) -> Amount:
        return total(line.residency for line in self.lines)

    @property
    def gpu_time(self) -> Amount:
        """The amount for dedicated engines."""
        return total(line.gpu_time for line in self.lines)

    @property
    def discount(self) -> Amount:
        """0 or less."""
        return Amount(-(self._undiscounted * self.discount_percent // 100))

    @property
    def _undiscounted(self) -> int:
        return self.used + self.batch_discount + self.residency + self.gpu_time

    @property
    def amount(self) -> Amount:
        return Amount(self._undiscounted + self.discount + self.top_up)

    @property
    def tokens(self) -> Tokens:
        """The sums of all lines."""
        sums = dict.fromkeys(Tokens._fields, 0)
        for kind in self.kinds:
            sums[kind.kind] += kind.quantity
            if kind.kind == "reasoning":
                sums["output"] += kind.quantity
        return Tokens(**sums)


def charge(
    card: RateCard,
    month: str,
    used: Mapping[PriceKey, Tokens],
    resident: Residency | None = None,
    dedicated: GpuHours | None = None,
) -> MonthCharges:
    """A month's charges. Quantities below zero (more corrected away than there were) count as none.
    `resident`: the tenant's adapters. `dedicated`: of engines that are dedicated to it."""
    by_line: dict[str, tuple[Tokens, Tokens]] = {}
    unlisted = 0
    lines = {line.name: line for line in (card.default_line, *card.lines)}
    for key, tokens in used.items():
        line = card.line_for(key)
        everything, batch = by_line.get(line.name, (NO_TOKENS, NO_TOKENS))
        if key.service_tier == BATCH and not line.service_tier and card.batch_percent < 100:
            batch = added(batch, tokens)
        by_line[line.name] = added(everything, tokens), batch
        if line.service_tier:
            unlisted += line.list_price(tokens) - card.list_price(key._replace(service_tier=""), tokens)
    of_lines: dict[str, dict[str, MilliHours]] = {}
    for adapter, hours in (resident or {}).items():
        line = card.residency_line(adapter)
        if line.residency_micros:
            of_lines.setdefault(line.name, {})[adapter] = hours
    of_gpus: dict[str, dict[str, MilliHours]] = {}
    for gpu_type, hours in (dedicated or {}).items():
        line = card.dedicated_line(gpu_type)
        if line.gpu_hour_micros:
            of_gpus.setdefault(line.name, {})[gpu_type] = hours
    charges = MonthCharges(
        card,
        tuple(
            _charged(
                line,
                *by_line.get(name, (NO_TOKENS, NO_TOKENS)),
                of_lines.get(name, {}),
                of_gpus.get(name, {}),
            )
            for name, line in lines.items()
            if not name or name in by_line or name in of_lines or name in of_gpus
        ),
        Amount(unlisted),
        card.discount_in(month),
    )
    return replace(charges, top_up=Amount(max(worth(card.minimum_micros) - charges.amount, 0)))


def _charged(
    line: CardLine, tokens: Tokens, batch: Tokens, resident: Residency, dedicated: GpuHours
) -> LineCharges:
    quantities = ((price, max(line.quantity(price.kind, tokens), 0)) for price in line.prices)
    return LineCharges(
        line,
        tuple(KindCharge(price, quantity, min(price.free, quantity)) for price, quantity in quantities),
        batch,
        resident,
        line.residency_micros or Micros(0),
        dedicated,
        line.gpu_hour_micros or Micros(0),
    )


def hours_price(per_hour: Micros, hours: MilliHours) -> Amount:
    return Amount(hours * per_hour * _PER_MILLI_HOUR)


@dataclass(frozen=True, slots=True)
class MonthCorrection:
    """What records that came late changed in an earlier month."""

    before: MonthCharges
    after: MonthCharges

    @property
    def tokens(self) -> Tokens:
        pairs = zip(self.after.tokens, self.before.tokens, strict=True)
        return Tokens(*(new - old for new, old in pairs))

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


def price_id(card: RateCard, kind: str, line: str = "") -> str:
    """The price of a SKU: `standard/2026-11/input`, or of a line `standard/2026-11/large/input`."""
    return "/".join(filter(None, (card.name, card.valid_from, line, kind)))


def line_sku(sku: str, line: str) -> str:
    """`tokens/input`, or of a line `tokens/input/large`."""
    return "/".join(filter(None, (sku, line)))

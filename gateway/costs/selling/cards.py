"""Rate cards: what customers pay, by month.

A card has a name (`standard`, `acme-2026`) and versions, each valid from a month until the card's next
version. A tenant has the card that is assigned to it from a month until its next assignment; a tenant without
an assignment of its own has the default card, and without that pays the cost. Nothing is edited: a row that
replaces an earlier one of the same month is added after it.

Months are whole, so that the allowance and the minimum of a month are those of one card.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Final, Self, TypeVar

from gateway.costs.field_error import FieldError
from gateway.costs.periods import iso, month_of
from gateway.costs.prices.jumps import check_jump
from gateway.costs.selling.card_lines import SELECTORS, CardLine, PriceKey, Tier, Tokens, tiers_of, told
from gateway.units import Amount, Cents, Micros, micros_text, typed_units

T = TypeVar("T")

DEFAULT = ""
"""The tenant of the default assignment."""
RULES: Final = 2
"""Rules for who pays a minimum; closed months keep theirs. By the first, who had the default card paid its
minimum without usage, too: before an assignment of its own, and in months with only corrections or failed
attempts. And usage that came late for a month without any was not charged it."""
ENDED = "-"
"""The card of an assignment that ends the tenant's own; no card can have the name."""
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
_LARGEST = 1_000_000
_LARGEST_MINIMUM = 1_000_000_000
_MOST_TOKENS = 10**15


class RateCardError(FieldError):
    """An invalid card, assignment or invoice. `param` names the field."""


class RateCardConflictError(Exception):
    """It contradicts what is recorded; the message says what to do."""


@dataclass(frozen=True)
class RateCard:
    """A version of a card. Without slots, because it remembers its default line."""

    name: str
    valid_from: str
    """The first month, like `2026-11`."""
    currency: str
    input_micros: Micros
    """Per million computed input tokens."""
    cached_micros: Micros
    output_micros: Micros
    minimum_micros: Micros
    """Per month; 0: none."""
    free_input: int
    """Computed input tokens per month that are not charged."""
    free_cached: int
    free_output: int
    reason: str
    """Why it replaces an earlier version of the same month; empty: it does not."""
    recorded_at: int
    residency_micros: Micros = Micros(0)  # noqa: RUF009  # an integer
    """Per hour in which an adapter of the tenant is resident. The default is for
    versions that a month kept before there was such a price."""
    batch_percent: int = 100
    """What batches' tokens cost, in percent of the others'. The default likewise."""
    reasoning_micros: Micros | None = None
    """This and the rest is stored and kept only where it says something. None: as output tokens."""
    request_micros: Micros = Micros(0)  # noqa: RUF009  # an integer
    free_requests: int = 0
    tiers: tuple[Tier, ...] = ()
    volume: bool = False
    """See `KindPrice`."""
    discount_percent: int = 0
    """Off everything but the minimum, which is compared with what is left."""
    discount_until: str = ""
    """The last month of the discount; empty: it has no end."""
    lines: tuple[CardLine, ...] = ()
    """What has other prices than the card's own; the most specific first."""

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> Self:
        """From `row()`."""
        known = dict(row)
        more = json.loads(known.pop("more", "") or "{}")
        if "tiers" in more:
            more["tiers"] = tiers_of(more["tiers"])
        if "lines" in more:
            more["lines"] = tuple(map(CardLine.of_row, more["lines"]))
        return cls(**known, **more)

    def row(self) -> dict[str, Any]:
        """As stored: what cards did not have from the beginning is together in `more`."""
        more = {name: value for name, value in told(self).items() if name in MORE}
        if self.lines:
            more["lines"] = [line.row() for line in self.lines]
        row = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in MORE}
        return {**row, "more": json.dumps(more, sort_keys=True) if more else ""}

    @property
    def terms(self) -> tuple[Any, ...]:
        """What a customer agrees to."""
        return tuple(getattr(self, f.name) for f in fields(self) if f.name not in _NO_TERMS)

    @cached_property
    def default_line(self) -> CardLine:
        return CardLine(name="", **{name: getattr(self, name) for name in _OF_DEFAULT})

    def line_for(self, key: PriceKey) -> CardLine:
        """By which a request is priced."""
        return next((line for line in self.lines if line.fits(key)), None) or self.default_line

    def list_price(self, key: PriceKey, tokens: Tokens) -> Amount:
        """What a request costs, before what is the month's: allowance, tiers, discounts and minimum."""
        return self.line_for(key).list_price(tokens)

    def residency_line(self, adapter: str) -> CardLine:
        """By which the hours of a resident adapter are priced."""
        own = (n for n in self.lines if n.adapter == adapter and n.residency_micros is not None)
        return next(own, None) or self.default_line

    def prices_residency(self, adapters: Iterable[str]) -> bool:
        return any(self.residency_line(adapter).residency_micros for adapter in adapters)

    @property
    def tells_batches(self) -> bool:
        """Whether batches have another price than other requests."""
        return self.batch_percent != 100 or any(line.service_tier for line in self.lines)

    def discount_in(self, month: str) -> int:
        """In percent."""
        return 0 if self.discount_until and month > self.discount_until else self.discount_percent

    def document(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "valid_from": self.valid_from,
            "currency": self.currency,
            "input_per_million": micros_text(self.input_micros),
            "cached_per_million": micros_text(self.cached_micros),
            "output_per_million": micros_text(self.output_micros),
            "residency_per_adapter_hour": micros_text(self.residency_micros),
            "batch_percent": self.batch_percent,
            "monthly_minimum": micros_text(self.minimum_micros),
            "free_input_tokens": self.free_input,
            "free_cached_tokens": self.free_cached,
            "free_output_tokens": self.free_output,
            **_more(self),
            "discount_percent": self.discount_percent,
            "discount_until": self.discount_until or None,
            "lines": [_line(line) for line in self.lines],
            "reason": self.reason or None,
            "recorded_at": iso(self.recorded_at),
        }


MORE: Final = (
    "reasoning_micros", "request_micros", "free_requests", "tiers", "volume", "discount_percent",
    "discount_until", "lines",
)  # fmt: skip  # one name a line says no more
_NO_TERMS: Final = {"name", "valid_from", "reason", "recorded_at"}
_OF_DEFAULT: Final = {f.name for f in fields(RateCard)} & {f.name for f in fields(CardLine)} - {"name"}


def _more(prices: RateCard | CardLine) -> dict[str, Any]:
    reasoning = prices.reasoning_micros
    return {
        "reasoning_per_million": None if reasoning is None else micros_text(reasoning),
        "per_request": micros_text(prices.request_micros),
        "free_requests": prices.free_requests,
        "tiers": [
            {"kind": tier.kind, "above": tier.above, "price": micros_text(tier.micros)}
            for tier in prices.tiers
        ],
        "tier_mode": "volume" if prices.volume else "graduated",
    }


def _line(line: CardLine) -> dict[str, Any]:
    resident = line.residency_micros
    return {
        "name": line.name,
        **{name: getattr(line, name) or None for name in SELECTORS},
        "input_per_million": micros_text(line.input_micros),
        "cached_per_million": micros_text(line.cached_micros),
        "output_per_million": micros_text(line.output_micros),
        "residency_per_adapter_hour": None if resident is None else micros_text(resident),
        "free_input_tokens": line.free_input,
        "free_cached_tokens": line.free_cached,
        "free_output_tokens": line.free_output,
        **_more(line),
    }


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

    def __init__(
        self, cards: Sequence[RateCard] = (), assignments: Sequence[Assignment] = (), rules: int = RULES
    ) -> None:
        self.rules = rules
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
    def of_rows(cls, rows: Mapping[str, Sequence[Mapping[str, Any]]], rules: int = RULES) -> Self:
        """From what a closed month keeps."""
        return cls(
            [RateCard.of_row(row) for row in rows.get("cards", ())],
            [Assignment(**row) for row in rows.get("assignments", ())],
            rules,
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
        return self.rules < RULES if own is None else own.card != ENDED

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


def card_name(value: str, what: str = "a rate card") -> str:
    """Raises RateCardError unless it is a name for a card, or a line of it."""
    if not _NAME.fullmatch(value):
        raise RateCardError(
            "name",
            f"{value[:40]!r} is not a name for {what}: use a-z, 0-9 and -, at most 63 characters.",
        )
    return value


def check_lines(lines: Sequence[CardLine]) -> None:
    """A request must have one line. Raises RateCardError."""
    names: set[str] = set()
    taken: dict[tuple[str, ...], str] = {}
    for line in lines:
        if not any(line.selectors):
            raise RateCardError(
                "lines",
                f"Line {line.name} is for everything, as the card's own prices are: say for which of "
                f"{', '.join(SELECTORS)} it is.",
            )
        if line.name in names:
            raise RateCardError("lines", f"Two lines are called {line.name}.")
        if (other := taken.get(line.selectors)) is not None:
            raise RateCardError("lines", f"Lines {other} and {line.name} are for the same usage.")
        if line.residency_micros is not None and not line.adapter:
            raise RateCardError(
                "lines",
                f"Line {line.name} names no adapter, so it cannot have a price per adapter-hour of its own.",
            )
        names.add(line.name)
        taken[line.selectors] = line.name


def rate(param: str, value: str) -> Micros:
    """Per million tokens, or per adapter-hour. Raises RateCardError unless it is a decimal ≥ 0 with at most
    six places."""
    return Micros(_micros(param, value, _LARGEST))


def minimum(value: str) -> Micros:
    """Per month. Raises RateCardError like `rate`."""
    return Micros(_micros("monthly_minimum", value, _LARGEST_MINIMUM))


def money(param: str, value: str) -> Cents:
    """Raises RateCardError unless it is a decimal above 0 with at most two places."""
    cents = typed_units(value, 2, _LARGEST_MINIMUM)
    if not cents:
        raise RateCardError(
            param, f"{value[:40]!r} is not an amount: write a decimal above 0 of at most two places."
        )
    return Cents(cents)


def percent(value: str) -> int:
    """Millionths of a percent. Raises RateCardError unless it is a decimal from 0 to 100."""
    return _micros("tax_percent", value, 100)


def free_tokens(param: str, value: int) -> int:
    """Raises RateCardError."""
    if not 0 <= value <= _MOST_TOKENS:
        raise RateCardError(param, f"{value:,} is not a number of tokens from 0 to {_MOST_TOKENS:,}.")
    return value


def _micros(param: str, value: str, most: int) -> int:
    micros = typed_units(value, 6, most)
    if micros is None:
        raise RateCardError(
            param, f"{value[:40]!r} is not valid: write a decimal of at most six places, 0 to {most:,}."
        )
    return micros


def check_currency(currency: str, known: Iterable[str | None]) -> None:
    """Statements, costs and margins are in one currency. Raises RateCardConflictError."""
    for other in known:
        if other is not None and other != currency:
            raise RateCardConflictError(
                f"The installation's prices are in {other}; a rate card in {currency} cannot be added."
            )

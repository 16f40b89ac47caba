"""A rate card: what customers pay. `assignments` says who has which card when."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Final, Self

from gateway.costs.field_error import FieldError
from gateway.costs.periods import iso
from gateway.costs.selling.card_lines import SELECTORS, CardLine, PriceKey, Tier, Tokens, tiers_of, told
from gateway.units import Amount, Cents, Micros, micros_text, typed_units

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
    gpu_hour_micros: Micros = Micros(0)  # noqa: RUF009  # an integer
    """Per GPU-hour of engines that are dedicated to the tenant."""
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

    def dedicated_line(self, gpu_type: str) -> CardLine:
        """By which the hours of dedicated engines are priced."""
        own = (n for n in self.lines if n.gpu_type == gpu_type and n.gpu_hour_micros is not None)
        return next(own, None) or self.default_line

    def prices_dedicated(self, gpu_types: Iterable[str]) -> bool:
        return any(self.dedicated_line(gpu_type).gpu_hour_micros for gpu_type in gpu_types)

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
            "per_gpu_hour": micros_text(self.gpu_hour_micros),
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
    "reasoning_micros", "request_micros", "gpu_hour_micros", "free_requests", "tiers", "volume",
    "discount_percent", "discount_until", "lines",
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
    resident, gpu_hour = line.residency_micros, line.gpu_hour_micros
    return {
        "name": line.name,
        **{name: getattr(line, name) or None for name in SELECTORS},
        "input_per_million": micros_text(line.input_micros),
        "cached_per_million": micros_text(line.cached_micros),
        "output_per_million": micros_text(line.output_micros),
        "residency_per_adapter_hour": None if resident is None else micros_text(resident),
        "per_gpu_hour": None if gpu_hour is None else micros_text(gpu_hour),
        "free_input_tokens": line.free_input,
        "free_cached_tokens": line.free_cached,
        "free_output_tokens": line.free_output,
        **_more(line),
    }


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
        if line.gpu_hour_micros is not None and (
            not line.gpu_type or any(value for value in line.selectors if value != line.gpu_type)
        ):
            raise RateCardError(
                "lines",
                f"Line {line.name} has a price per GPU-hour: such a line names a GPU type and nothing else.",
            )
        names.add(line.name)
        taken[line.selectors] = line.name


def rate(param: str, value: str) -> Micros:
    """Per million tokens, per adapter-hour or per GPU-hour. Raises RateCardError unless it is a decimal ≥ 0
    with at most six places."""
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

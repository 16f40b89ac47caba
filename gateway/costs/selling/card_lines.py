"""The lines of a rate card: what is sold at which prices. Pure.

A line prices the usage of an adapter, a base model, a task (see `adapters.model.Task`), a GPU type or a
service tier, or of several of these together. The most specific line that fits prices a request: an adapter
is more specific than all the rest, then a base model, a task, a GPU type, and last a service tier. What no
line fits has the card's own prices, its default line. So for each request there is exactly one line, and it
depends on nothing but the request.

What a month costs by a line depends on the month's quantities alone, never on how many requests they came in
or in which order; only a price per request counts these.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from functools import cached_property
from itertools import pairwise
from typing import Any, Final, Literal, NamedTuple, Self

from adapters.model.engine import GENERATE
from gateway.units import MICRO, Amount, Micros, worth

Kind = Literal["input", "cached", "output", "reasoning", "requests"]
KINDS: Final[tuple[Kind, ...]] = ("input", "cached", "output", "reasoning", "requests")
SELECTORS: Final = ("adapter", "base_model", "task", "gpu_type", "service_tier")
"""The most specific first."""


class PriceKey(NamedTuple):
    """What tells apart usage that may have different prices."""

    adapter: str = ""
    """Full name; empty for the base model."""
    base_model: str = ""
    task: str = GENERATE
    gpu_type: str = ""
    service_tier: str = ""


class Tokens(NamedTuple):
    """Tokens of delivered answers, and how many answers there were."""

    input: int = 0
    """Computed: without cached ones."""
    cached: int = 0
    output: int = 0
    reasoning: int = 0
    """Part of the output."""
    requests: int = 0


NO_TOKENS = Tokens()


def added(tokens: Tokens, other: Tokens) -> Tokens:
    return Tokens(*(a + b for a, b in zip(tokens, other, strict=True)))


@dataclass(frozen=True, slots=True)
class Tier:
    """Another price from a monthly quantity on."""

    kind: Kind
    above: int
    """Tokens or requests of the month, without the free ones, after which it begins."""
    micros: Micros


@dataclass(frozen=True, slots=True)
class KindPrice:
    """The price of one kind of token, or of requests."""

    kind: Kind
    micros: Micros
    """Per million tokens, or per request."""
    free: int = 0
    """Per month."""
    tiers: tuple[Tier, ...] = ()
    """In the order of `above`."""
    volume: bool = False
    """True: the tier that the month reaches prices all of it; False: only what is above it."""

    def worth(self, quantity: int, micros: Micros) -> int:
        """`quantity` at one price, in 10**-15 of the currency: exact, because a millionth per million tokens
        is 1000 of these a token."""
        return quantity * (worth(micros) if self.kind == "requests" else worth(micros) // MICRO)

    def amount(self, quantity: int) -> Amount:
        """What a month's quantity costs, without the free part."""
        if self.volume:
            reached = [tier.micros for tier in self.tiers if tier.above < quantity]
            return Amount(self.worth(quantity, reached[-1] if reached else self.micros))
        steps = [(0, self.micros), *((tier.above, tier.micros) for tier in self.tiers), (None, Micros(0))]
        parts = (
            self.worth(max(0, quantity - above if end is None else min(quantity, end) - above), micros)
            for (above, micros), (end, _) in pairwise(steps)
            if above is not None
        )
        return Amount(sum(parts))


@dataclass(frozen=True)
class CardLine:
    """Without slots, because it remembers what is made of it: a month has a million rows to price."""

    name: str
    """Empty: the default line."""
    input_micros: Micros
    """Per million computed input tokens."""
    cached_micros: Micros
    output_micros: Micros
    adapter: str = ""
    """This and the next ones say for which usage; empty: any."""
    base_model: str = ""
    task: str = ""
    gpu_type: str = ""
    service_tier: str = ""
    reasoning_micros: Micros | None = None
    """None: reasoning tokens cost what other output tokens do."""
    request_micros: Micros = Micros(0)  # noqa: RUF009  # an integer
    residency_micros: Micros | None = None
    """Per hour in which an adapter is resident; None: the card's."""
    gpu_hour_micros: Micros | None = None
    """Per GPU-hour of engines that are dedicated to the tenant; None: the card's."""
    free_input: int = 0
    free_cached: int = 0
    free_output: int = 0
    free_requests: int = 0
    tiers: tuple[Tier, ...] = ()
    """In the order of KINDS, then of `above`."""
    volume: bool = False

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> Self:
        return cls(**{**row, "tiers": tiers_of(row.get("tiers", ()))})

    def row(self) -> dict[str, Any]:
        """Without what is as by default."""
        return told(self)

    @property
    def selectors(self) -> tuple[str, ...]:
        return tuple(getattr(self, name) for name in SELECTORS)

    def fits(self, key: PriceKey) -> bool:
        return all(not own or own == other for own, other in zip(self.selectors, key, strict=True))

    @cached_property
    def prices(self) -> tuple[KindPrice, ...]:
        """One for each kind that has one; tokens always do."""
        given: tuple[tuple[Kind, Micros | None, int], ...] = (
            ("input", self.input_micros, self.free_input),
            ("cached", self.cached_micros, self.free_cached),
            ("output", self.output_micros, self.free_output),
            ("reasoning", self.reasoning_micros, 0),
            ("requests", self.request_micros, self.free_requests),
        )
        return tuple(
            KindPrice(kind, micros, free, own, self.volume)
            for kind, micros, free in given
            if micros is not None
            for own in [tuple(tier for tier in self.tiers if tier.kind == kind)]
            if own or micros or kind != "requests"
        )

    def quantity(self, kind: Kind, tokens: Tokens) -> int:
        """How much of a kind `tokens` are: reasoning is output, unless it has a price of its own."""
        if kind == "output" and self.reasoning_micros is not None:
            return tokens.output - tokens.reasoning
        return getattr(tokens, kind)  # type: ignore[no-any-return]  # a field of integers

    def list_price(self, tokens: Tokens) -> Amount:
        """Before allowance and tiers."""
        prices = (price.worth(self.quantity(price.kind, tokens), price.micros) for price in self.prices)
        return Amount(sum(prices))


def told(thing: Any) -> dict[str, Any]:
    """A dataclass as a row, without what is as by default: so that rows stay as they were when fields are
    added."""
    row = asdict(thing)
    return {
        f.name: row[f.name]
        for f in fields(thing)
        if f.default is MISSING or getattr(thing, f.name) != f.default
    }


def tiers_of(rows: Iterable[Mapping[str, Any]]) -> tuple[Tier, ...]:
    return in_order(Tier(**row) for row in rows)


def in_order(tiers: Iterable[Tier]) -> tuple[Tier, ...]:
    return tuple(sorted(tiers, key=lambda tier: (KINDS.index(tier.kind), tier.above)))


def most_specific_first(lines: Iterable[CardLine]) -> Iterator[CardLine]:
    yield from sorted(lines, key=lambda line: (*(not selector for selector in line.selectors), line.name))

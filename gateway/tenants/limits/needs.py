"""What a request will use, as far as can be known before it runs. Pure."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from decimal import Decimal
from typing import Final, Protocol

from gateway.dataplane.request import COMPLETIONS_OUTPUT, UNNAMED, Call, Sold, output_bound
from gateway.errors import FlorinError
from gateway.tenants.terms import MOST_MONEY, Budget, Limits, Measure, rules_of
from gateway.units import NANO

_MILLION: Final = 1_000_000
FIRST_OUTPUT: Final = 512
"""Expected output tokens of a tenant without history, per choice."""
UNBOUNDED_OUTPUT: Final = 32_768
"""Assumed at worst, per choice, where neither the request nor its limits bound the output."""


@dataclass(frozen=True, slots=True)
class TokenPrice:
    """Billionths of the currency per million tokens."""

    input: int
    cached: int
    output: int
    reasoning: int
    """A part of the output."""
    request: int = 0
    """Per request, not per million."""

    def cost(
        self, prompt: int, cached: int, completion: int, *, reasoning: int = 0, requests: int = 1
    ) -> int:
        """In billionths of the currency, rounded up. `cached`: part of the prompt; `reasoning`: part of the
        completion."""
        total = (prompt - cached) * self.input + cached * self.cached
        total += (completion - reasoning) * self.output + reasoning * self.reasoning
        return -(-total // _MILLION) + requests * self.request


class Prices(Protocol):
    """What tenants pay: `gateway.costs.price_list`."""

    def of(self, tenant: str, sold: Sold, gpu_type: str | None) -> TokenPrice | None:
        """`gpu_type`: None: neither it nor the kinds of tokens are known yet, so the dearest. Returns None if
        nothing is known."""

    def currency(self, tenant: str) -> str | None:
        """That of the tenant's rate card; None: it has none."""


def check_money(limits: Limits, budget: Budget) -> None:
    """Raises FlorinError for limits of money that could not be enforced."""
    money = [rule.amount for rule in rules_of(limits, budget) if rule.measure is Measure.MONEY]
    if any(not 0 <= amount <= MOST_MONEY for amount in money):
        raise FlorinError("invalid_value", f"A money budget must be at most {MOST_MONEY:,}.", param="budget")


def nano(amount: Decimal) -> int:
    """In billionths of the currency."""
    return int(amount * NANO)


class OutputHistory:
    """How long a tenant's recent answers were. Mutable, on the event loop only."""

    __slots__ = ("_new", "_seen", "expected")

    def __init__(self) -> None:
        self._seen: deque[int] = deque(maxlen=64)
        self._new = 0
        self.expected = FIRST_OUTPUT
        """Nine of ten answers are at most this long, in tokens per choice."""

    def learn(self, tokens: int) -> None:
        self._seen.append(tokens)
        self._new += 1
        if self._new >= 8 or len(self._seen) <= 8:
            self._new = 0
            self.expected = sorted(self._seen)[len(self._seen) * 9 // 10]


BOUNDS: Final = {
    "max_output_exceeded": "max_output",
    "context_length_exceeded": "max_context",
    "user_required": "user_required",
}
"""Codes of `Bounds.apply`'s refusals → the limits."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """A tenant's and a key's limits of one request, together."""

    max_context: int | None
    max_output: int | None
    user_required: bool = False

    def apply(self, call: Call) -> None:
        """Refuse a request that exceeds them, or bound its output. Raises FlorinError."""
        if self.user_required and not call.end_user:
            raise FlorinError(
                "user_required", "Name your end user in `safety_identifier`.", param="safety_identifier"
            )
        choices = call.choices
        field, requested = output_bound(call.body)
        name = call.endpoint.named(field)
        most = None if self.max_output is None or not choices else self.max_output // choices
        if most is not None and (most < 1 or (requested or 0) > most):
            each = "" if choices == 1 else f" for {choices} answers together"
            raise FlorinError(
                "max_output_exceeded",
                f"Your limit is {self.max_output:,} output tokens per request{each}.",
                param=name if requested else "n",
            )
        if self.max_context is not None:
            room = self.max_context - call.estimate
            if room < 1 or (requested or 0) > room:
                raise FlorinError(
                    "context_length_exceeded",
                    f"Your limit is {self.max_context:,} tokens per request, prompt and output together. The "
                    f"prompt has about {call.estimate:,} (an estimate)"
                    + (f", and `{name}` asks for {requested:,} more." if requested else "."),
                    param=call.endpoint.named(call.endpoint.required),
                )
            most = room if most is None else min(most, room)
        default = None if call.endpoint.chat else COMPLETIONS_OUTPUT
        if choices and requested is None and most is not None and (default is None or most < default):
            call.body[field] = most


def bounds(*limits: Limits) -> Bounds | None:
    """What several limits allow together; None: anything."""
    context = min((x.max_context for x in limits if x.max_context is not None), default=None)
    output = min((x.max_output for x in limits if x.max_output is not None), default=None)
    user = any(x.user_required for x in limits)
    return None if context is None and output is None and not user else Bounds(context, output, user)


Used = tuple[int, int, int]
"""Requests, tokens, and money in billionths of the currency."""


@dataclass(slots=True)
class Need:
    """What one request is expected to use, and what it may use at worst."""

    expected: Used
    worst: Used
    sold: Sold = UNNAMED


def need_of(call: Call, history: OutputHistory, price: TokenPrice | None) -> Need:
    """The worst case assumes a token per byte of the body, but no more than the model's engines take: the
    bytes of a photo are no tokens."""
    choices = call.choices
    bound = call.output_limit
    each = history.expected if bound is None else bound
    expected, tokens = each * choices, call.estimate + each * choices
    prompt, output = call.size, UNBOUNDED_OUTPUT if bound is None else bound
    if call.context:
        prompt, output = min(prompt, call.context * call.prompts), min(output, call.context)
    prompt, output = max(prompt, call.estimate), max(output, each) * choices
    if price is None:
        return Need((1, tokens, 0), (1, prompt + output, 0), call.sold)
    money, dearest = price.cost(call.estimate, 0, expected), price.cost(prompt, 0, output)
    return Need((1, tokens, money), (1, prompt + output, dearest), call.sold)


def seconds_up(seconds: float) -> int:
    """Whole seconds for `retry-after`, at least one."""
    return max(1, math.ceil(seconds))

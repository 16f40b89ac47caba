"""Fits an engine's costs to what the engine shows, starting from the prior figures.

Three things can be seen from outside: how long loads take, how much slower tokens come with each further
request in flight, and how long prompts wait. The cost of one more distinct adapter and that of an activation
cannot be told apart from these; they keep their prior figures.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from adapters.placement.scheduling.costs import EngineCosts

MEMORY = 0.99
"""Weight of the past at each observation: about the last hundred count."""
PRIOR_WEIGHT = 20.0
"""Observations that the prior is worth."""
LOAD_WEIGHT = 0.2
"""Weight of the latest load: loads are rarer than answers."""
TYPICAL_TOKENS = 200.0
"""Length of an answer for which the prior figures hold."""
RANGE = 30.0
"""No cost leaves this factor around its prior, whatever an engine shows."""


@dataclass(slots=True)
class Slope:
    """The slope of y against x: weighted least squares with exponential forgetting, drawn towards a prior
    slope as if by PRIOR_WEIGHT observations (ridge regression). Mutable."""

    prior: float
    weight: float = 0.0
    mean_x: float = 0.0
    mean_y: float = 0.0
    xx: float = 0.0
    xy: float = 0.0

    def observe(self, x: float, y: float) -> None:
        self.weight = self.weight * MEMORY + 1
        step = x - self.mean_x
        self.mean_x += step / self.weight
        self.mean_y += (y - self.mean_y) / self.weight
        self.xx = self.xx * MEMORY + step * (x - self.mean_x)
        self.xy = self.xy * MEMORY + step * (y - self.mean_y)

    @property
    def value(self) -> float:
        """Never outside RANGE around the prior."""
        spread = self.xx / self.weight if self.weight else 0.0
        drawn = PRIOR_WEIGHT * max(spread, 1e-9)  # so that the prior's share does not depend on the unit of x
        fitted = (self.xy + drawn * self.prior) / (self.xx + drawn)
        return bounded(fitted, self.prior)


@dataclass(slots=True)
class LearnedCosts:
    """Adapts `costs` to one engine. Mutable."""

    costs: EngineCosts
    _prior: EngineCosts = field(default_factory=EngineCosts)
    _token_ms: Slope = field(init=False)
    """Milliseconds for each token of an answer, against requests in flight."""
    _prompt_ms: Slope = field(init=False)
    """Milliseconds to the first token, against prompt tokens that are not processed yet."""
    _tokens: float = TYPICAL_TOKENS
    """Mean length of an answer."""
    _load_scale: float = 1.0

    def __post_init__(self) -> None:
        self._token_ms = Slope(self._prior.per_request / (2 * TYPICAL_TOKENS))
        self._prompt_ms = Slope(self._prior.per_prompt_token)

    def answered(
        self, *, in_flight: float, pending: float, first_token_ms: float, token_ms: float, tokens: int
    ) -> None:
        """A stream was answered. `in_flight` and `pending` were the engine's requests and its unprocessed
        prompt tokens, its own included, when it was sent.

        One more request in flight makes each token of its own answer and of every other running answer
        slower by the slope b. Over an answer of T tokens, that is b·T to itself for each request in flight,
        and as much to each of these: 2·b·T."""
        if tokens > 1:
            self._tokens += (tokens - self._tokens) * (1 - MEMORY)
            self._token_ms.observe(in_flight, token_ms)
            self.costs.per_request = bounded(2 * self._token_ms.value * self._tokens, self._prior.per_request)
        self._prompt_ms.observe(pending, first_token_ms)
        self.costs.per_prompt_token = self._prompt_ms.value

    def loaded(self, rank: int, milliseconds: float) -> None:
        """A load from disk took this long."""
        expected = self._prior.load(rank)
        scale = bounded(milliseconds / expected, 1.0)
        self._load_scale += (scale - self._load_scale) * LOAD_WEIGHT
        self.costs.load_base = self._prior.load_base * self._load_scale
        self.costs.load_per_rank = self._prior.load_per_rank * self._load_scale


def bounded(value: float, prior: float) -> float:
    return min(prior * RANGE, max(prior / RANGE, value))

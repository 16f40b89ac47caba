"""Generated workloads: who asks for which adapter, when, and how many tokens.

Adapters: as in a production trace with 874 of them, where popularity is Zipf with exponent 0.92, 42 % of
consecutive requests reuse the adapter, and LRU caches of 8 are hit by 83 %. Shuffled, 29 %, and the 8 most
popular adapters have 46 %: more than in the whole trace, because each part of it has its own favourites.

Lengths: log-normal, with the medians and means of the conversations in the Azure LLM inference trace of 2023
(Patel et al., Splitwise, ISCA 2024): prompts 1,020 and 1,155 tokens, answers 129 and 211.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gateway.planning.simulator.simulated_request import Blocks, Request

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

PROMPT_MEDIAN, PROMPT_MEAN, MOST_PROMPT = 1020, 1155, 6000
OUTPUT_MEDIAN, OUTPUT_MEAN, MOST_OUTPUT = 129, 211, 2000
RANKS, RANK_SHARES = (8, 16, 32), (0.4, 0.4, 0.2)
BIG_RANK = 64
SAME, RECENT = 0.4, 0.34
"""Shares of requests for the adapter of the last one, and for one of the DEPTH before it; the nearer the
likelier. The others are drawn from the popularity."""
DEPTH = 7
STACK = 64
FAVOURITES, PART = 2.1, 4000
"""Popularities in each part of so many requests of a stream: times a log-normal factor with that sigma."""
TENANTS = 16
DRIFT_SECONDS = 60.0
HOT = 0.6
FLOOD_BEGINS, FLOOD_SECONDS = 30.0, 60.0
SWING = 0.9
"""How far the rate rises and falls, as a fraction of its mean, in a day: the length of the workload."""
BURST_SECONDS, BETWEEN_BURSTS, QUIET = 20.0, 30.0, 0.15
"""Bursts of one adapter, and the rate between them, as a fraction of theirs."""
NOISY = 0.5
"""Share of all requests that the noisy tenant sends in the middle third."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Columns of one length."""

    arrival: Floats
    adapter: Ints
    tenant: Ints
    rank: Ints
    prompt: Ints
    output: Ints
    blocks: Sequence[tuple[Blocks, Blocks]] | None = None
    """Each prompt's alone, and with its answer; None: they share nothing."""
    names: tuple[str, ...] = ()
    """Names of adapters; empty: they are numbered."""
    tenants: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.arrival)

    @property
    def max_rank(self) -> int:
        return int(self.rank.max(initial=8))

    def requests(self) -> list[Request]:
        """New ones, since a simulation changes them."""
        names = self.names or [f"a{n}" for n in range(int(self.adapter.max(initial=0)) + 1)]
        tenants = self.tenants or [f"t{n}" for n in range(int(self.tenant.max(initial=0)) + 1)]
        columns = (self.arrival, self.adapter, self.tenant, self.rank, self.prompt, self.output)
        blocks = [((), ())] * len(self) if self.blocks is None else self.blocks
        rows = zip(*(column.tolist() for column in columns), blocks, strict=True)
        return [
            Request(arrival, tenants[tenant], names[adapter], rank, prompt, output, *shared)
            for arrival, adapter, tenant, rank, prompt, output, shared in rows
        ]

    def scaled(self, factor: float) -> Workload:
        """The same requests, at `factor` times the rate."""
        return replace(self, arrival=self.arrival / factor)


@dataclass(frozen=True, slots=True)
class Drawn:
    """What a generator of adapters may draw from."""

    arrival: Floats
    rng: np.random.Generator
    adapters: int
    hot: float = HOT

    def zipf(self, exponent: float, among: int) -> Ints:
        weights = np.arange(1, among + 1, dtype=np.float64) ** -exponent
        return np.asarray(
            self.rng.choice(among, len(self.arrival), p=weights / weights.sum()), dtype=np.int64
        )


def locality(drawn: Drawn, streams: int = 1) -> Ints:
    """Reuse by recency; each stream has a history and favourites of its own."""
    count = len(drawn.arrival)
    kind = drawn.rng.random(count).tolist()
    weights = 1 / np.arange(1, DEPTH + 1)
    depth = drawn.rng.choice(np.arange(1, DEPTH + 1), count, p=weights / weights.sum()).tolist()
    stream = drawn.rng.integers(streams, size=count).tolist()
    stacks: list[list[int]] = [[] for _ in range(streams)]
    fresh: list[Iterator[int]] = [_parts(drawn) for _ in range(streams)]
    chosen = np.empty(count, dtype=np.int64)
    for i in range(count):
        stack = stacks[stream[i]]
        new = next(fresh[stream[i]])
        if stack and kind[i] < SAME:
            adapter = stack[0]
        elif depth[i] < len(stack) and kind[i] < SAME + RECENT:
            adapter = stack.pop(depth[i])
            stack.insert(0, adapter)
        else:
            adapter = new
            if adapter in stack:
                stack.remove(adapter)
            stack.insert(0, adapter)
            del stack[STACK:]
        chosen[i] = adapter
    return chosen


def _parts(drawn: Drawn) -> Iterator[int]:
    popularity = np.arange(1, drawn.adapters + 1, dtype=np.float64) ** -0.92
    while True:
        weights = popularity * drawn.rng.lognormal(0, FAVOURITES, drawn.adapters)
        yield from drawn.rng.choice(drawn.adapters, PART, p=weights / weights.sum()).tolist()


def hot(drawn: Drawn) -> Ints:
    """One adapter has most of the requests, the others are Zipf."""
    others = drawn.zipf(0.92, drawn.adapters - 1) + 1
    return np.where(drawn.rng.random(len(drawn.arrival)) < drawn.hot, 0, others)


def drift(drawn: Drawn) -> Ints:
    """The popularity moves on by a tenth of the adapters every minute."""
    step = (drawn.arrival // DRIFT_SECONDS).astype(np.int64) * max(1, drawn.adapters // 10)
    return (drawn.zipf(0.92, drawn.adapters) + step) % drawn.adapters


def noisy(drawn: Drawn) -> Ints:
    """Tenant 0 (every TENANTS-th adapter) sends as much as all others in the middle third."""
    usual = drawn.zipf(0.92, drawn.adapters)
    end = drawn.arrival[-1] if len(drawn.arrival) else 0.0
    middle = (drawn.arrival > end / 3) & (drawn.arrival < 2 * end / 3)
    loud = middle & (drawn.rng.random(len(drawn.arrival)) < NOISY)
    return np.where(loud, usual // TENANTS * TENANTS, usual)


def flash(drawn: Drawn) -> Ints:
    """An adapter that is hardly called otherwise has most of the requests for a tenth of the time."""
    usual = drawn.zipf(0.9, drawn.adapters)
    end = drawn.arrival[-1] if len(drawn.arrival) else 0.0
    crowd = _crowded(drawn.arrival / end) & (drawn.rng.random(len(drawn.arrival)) < HOT)
    return np.where(crowd, drawn.adapters - 1, usual)


def mixed(drawn: Drawn) -> Ints:
    """Bursts of one adapter; the others take turns, each during one burst and the quiet after it."""
    turn = (drawn.arrival // (BURST_SECONDS + BETWEEN_BURSTS)).astype(np.int64)
    others = 1 + turn % (drawn.adapters - 1)
    burst = _bursting(drawn.arrival) & (drawn.rng.random(len(drawn.arrival)) < 1 - QUIET)
    return np.where(burst, 0, others)


def _crowded(part: Floats) -> NDArray[np.bool_]:
    return (part > 0.4) & (part < 0.5)


def _bursting(arrival: Floats) -> NDArray[np.bool_]:
    return arrival % (BURST_SECONDS + BETWEEN_BURSTS) < BURST_SECONDS


def shares(drawn: Drawn) -> Ints:
    """All adapters, and so all tenants, have as many requests."""
    return drawn.rng.integers(drawn.adapters, size=len(drawn.arrival))


@dataclass(frozen=True, slots=True)
class Generator:
    adapters: int
    choose: Callable[[Drawn], Ints]
    cv: float = 1.0
    """Coefficient of variation of the gaps between arrivals; 1: Poisson."""
    rate: Callable[[Floats, float], Floats | NDArray[np.bool_]] | None = None
    """Arrivals and the length of the workload → the rate then, as a fraction of the highest."""
    flood: float = 0.0
    """Times its share that tenant 0 sends besides, for FLOOD_SECONDS from FLOOD_BEGINS."""


WORKLOADS: dict[str, Generator] = {
    "W1": Generator(874, locality),
    "W1i": Generator(874, lambda drawn: locality(drawn, streams=16)),
    "W2": Generator(1000, lambda drawn: drawn.zipf(0.9, drawn.adapters)),
    "hot": Generator(201, hot),
    "drift": Generator(874, drift),
    "noisy": Generator(874, noisy),
    "bursts": Generator(874, locality, cv=4.0),
    "shares": Generator(64, shares),
    "flood": Generator(64, shares, flood=20.0),
    "diurnal": Generator(
        874,
        lambda drawn: drawn.zipf(0.9, drawn.adapters),
        rate=lambda arrival, seconds: (1 - SWING * np.cos(2 * np.pi * arrival / seconds)) / (1 + SWING),
    ),
    "flash": Generator(
        874,
        flash,
        rate=lambda arrival, seconds: np.where(_crowded(arrival / seconds), 1.0, 1 - HOT),
    ),
    "mixed": Generator(6, mixed, rate=lambda arrival, _: np.where(_bursting(arrival), 1.0, QUIET)),
}


def generate(
    workload: str | Generator,
    rate: float,
    seconds: float,
    seed: int,
    *,
    adapters: int | None = None,
    cv: float | None = None,
    big_ranks: float = 0.0,
    hot: float = HOT,
) -> Workload:
    """Requests at `rate` a second. A higher rate of the same seed brings the same requests sooner, and more
    of them. `big_ranks`: share of adapters of BIG_RANK. `hot`: share of requests of the workload `hot` that
    are for one adapter."""
    generator = WORKLOADS[workload] if isinstance(workload, str) else workload
    arrivals, choices, lengths = (np.random.default_rng([seed, n]) for n in range(3))
    count = math.ceil(rate * seconds)
    cv = cv or generator.cv
    shape = 1 / cv**2
    arrival = np.cumsum(arrivals.gamma(shape, 1 / (shape * rate), count))
    arrival = arrival[arrival < seconds]
    if generator.rate:
        arrival = arrival[choices.random(len(arrival)) < generator.rate(arrival, seconds)]
    among = adapters or generator.adapters
    adapter = generator.choose(Drawn(arrival, choices, among, hot))
    if generator.flood:
        arrival, adapter = _flooded(arrival, adapter, generator.flood * rate / TENANTS, seed)
    ranks = np.random.default_rng(0).choice(RANKS, among, p=RANK_SHARES)
    ranks[np.random.default_rng(1).random(among) < big_ranks] = BIG_RANK
    return Workload(
        arrival=arrival,
        adapter=adapter,
        tenant=adapter % TENANTS,
        rank=ranks[adapter],
        prompt=_lengths(lengths, len(arrival), PROMPT_MEDIAN, PROMPT_MEAN, MOST_PROMPT),
        output=_lengths(lengths, len(arrival), OUTPUT_MEDIAN, OUTPUT_MEAN, MOST_OUTPUT),
    )


def _flooded(arrival: Floats, adapter: Ints, rate: float, seed: int) -> tuple[Floats, Ints]:
    rng = np.random.default_rng([seed, 4])
    more = FLOOD_BEGINS + np.cumsum(rng.exponential(1 / rate, math.ceil(2 * rate * FLOOD_SECONDS)))
    more = more[more < FLOOD_BEGINS + FLOOD_SECONDS]
    arrival = np.concatenate([arrival, more])
    adapter = np.concatenate([adapter, TENANTS * rng.integers(adapter.max() // TENANTS + 1, size=len(more))])
    order = np.argsort(arrival, kind="stable")
    return arrival[order], adapter[order]


def _lengths(rng: np.random.Generator, count: int, median: float, mean: float, most: int) -> Ints:
    drawn = rng.lognormal(math.log(median), math.sqrt(2 * math.log(mean / median)), count)
    return np.clip(np.rint(drawn), 1, most).astype(np.int64)

"""The traffic to plan for: as stated, or resampled from what was used."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gateway.planning.simulator.workloads import (
    MOST_OUTPUT,
    MOST_PROMPT,
    OUTPUT_MEAN,
    OUTPUT_MEDIAN,
    PROMPT_MEAN,
    PROMPT_MEDIAN,
    Workload,
    generate,
)


@dataclass(frozen=True, slots=True)
class Stated:
    workload: str
    rate: float
    adapters: int | None
    prompt_tokens: float
    output_tokens: float
    """Means."""
    cv: float | None = None

    def made(self, seconds: float, seed: int) -> Workload:
        drawn = generate(self.workload, self.rate, seconds, seed, adapters=self.adapters, cv=self.cv)
        return replace(
            drawn,
            prompt=_scaled(drawn.prompt, self.prompt_tokens / PROMPT_MEAN),
            output=_scaled(drawn.output, self.output_tokens / OUTPUT_MEAN),
        )


@dataclass(frozen=True, slots=True)
class AdapterUse:
    """What one adapter was used for in an hour."""

    name: str
    """Empty: the base model."""
    requests: int
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Used:
    """An hour of real traffic."""

    uses: tuple[AdapterUse, ...]
    rank: int
    cv: float = 1.0

    @property
    def rate(self) -> float:
        return sum(use.requests for use in self.uses) / 3600

    def made(self, seconds: float, seed: int) -> Workload:
        """New arrivals at the hour's rate: adapters by their shares, lengths about each adapter's means."""
        rng = np.random.default_rng(seed)
        count = max(1, math.ceil(self.rate * seconds))
        shape = 1 / self.cv**2
        arrival = np.cumsum(rng.gamma(shape, 1 / (shape * self.rate), count))
        requests = np.array([use.requests for use in self.uses], dtype=np.float64)
        adapter = rng.choice(len(self.uses), count, p=requests / requests.sum())
        prompts = np.array([use.prompt_tokens for use in self.uses]) / requests
        outputs = np.array([use.output_tokens for use in self.uses]) / requests
        tenants = sorted({use.name.partition("/")[0] for use in self.uses})
        tenant = np.array([tenants.index(use.name.partition("/")[0]) for use in self.uses])
        ranks = np.array([self.rank if use.name else 0 for use in self.uses])
        return Workload(
            arrival=arrival - arrival[0],
            adapter=adapter,
            tenant=tenant[adapter],
            rank=ranks[adapter],
            prompt=_spread(rng, prompts[adapter], PROMPT_MEAN / PROMPT_MEDIAN, MOST_PROMPT),
            output=_spread(rng, outputs[adapter], OUTPUT_MEAN / OUTPUT_MEDIAN, MOST_OUTPUT),
            names=tuple(use.name for use in self.uses),
            tenants=tuple(tenants),
        )


def uses_of(workload: Workload) -> tuple[AdapterUse, ...]:
    """What an hour of such traffic uses of each adapter that gets a request in it."""
    hours = float(workload.arrival[-1]) / 3600 or 1.0
    counts, prompts, outputs = (
        np.rint(np.bincount(workload.adapter, weights) / hours).astype(int).tolist()
        for weights in (None, workload.prompt, workload.output)
    )
    names = workload.names or [f"a{number}" for number in range(len(counts))]
    return tuple(
        AdapterUse(names[number], counts[number], prompts[number], outputs[number])
        for number in np.flatnonzero(np.bincount(workload.adapter, workload.rank))
        if counts[number]
    )


def _scaled(tokens: NDArray[np.int64], factor: float) -> NDArray[np.int64]:
    return np.asarray(np.maximum(1, np.rint(tokens * factor)), dtype=np.int64)


def _spread(
    rng: np.random.Generator, means: NDArray[np.float64], skew: float, most: int
) -> NDArray[np.int64]:
    """Log-normal lengths; `skew`: mean over median. `most`: unless the mean is longer."""
    sigma = math.sqrt(2 * math.log(skew))
    drawn = means * rng.lognormal(-(sigma**2) / 2, sigma, len(means))
    return np.asarray(np.clip(np.rint(drawn), 1, np.maximum(most, means)), dtype=np.int64)

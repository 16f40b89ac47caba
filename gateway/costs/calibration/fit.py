"""Fits weights to measured loads: non-negative least squares with confidence intervals. Pure.

The model (per engine, GPU-seconds at saturation): time = a·computed prompt tokens + k·cached prompt tokens
+ b·completion tokens + d·KV token-seconds + l·adapter loads. Each measurement is divided by its own duration,
so that relative errors are minimized and long measurements do not outweigh short ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any

from adapters.wording import counted

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Matrix = NDArray[np.float64]

TERMS = ("prefill", "cached", "decode", "kv", "load")
"""a, k, b, d, l."""
UNITS = ("computed prompt token", "cached prompt token", "completion token", "token kept for 1 s", "load")

_RESAMPLINGS = 400
_SEED = 20_261
_LEAST = 6


class CalibrationError(Exception):
    """The measurements do not allow a fit, or the engine does not allow measurements."""


@dataclass(frozen=True, slots=True)
class LoadSample:
    """One measured load on an otherwise idle engine."""

    phase: str
    seconds: float
    """From the first request to the last answer."""
    gpus: int
    computed: int
    """Prompt tokens that were not in the engine's cache."""
    cached: int
    completion: int
    kv_token_seconds: float
    loads: int
    requests: int

    def counts(self) -> tuple[float, ...]:
        return self.computed, self.cached, self.completion, self.kv_token_seconds, self.loads


@dataclass(frozen=True, slots=True)
class Weight:
    term: str
    picoseconds: int
    """GPU-picoseconds per unit."""
    low: int
    """95 % confidence interval, by resampling."""
    high: int
    measured: bool
    """False: no sample contains this term, and the weight is 0 because it is unknown."""


@dataclass(frozen=True, slots=True)
class Fit:
    weights: tuple[Weight, ...]
    r_squared: float
    """Coefficient of determination of the durations."""
    worst: float
    """Largest relative error of a sample."""
    samples: int

    def document(self) -> dict[str, Any]:
        return {
            "weights": {
                w.term: {"ps": w.picoseconds, "low_ps": w.low, "high_ps": w.high, "measured": w.measured}
                for w in self.weights
            },
            "r_squared": round(self.r_squared, 6),
            "worst_relative_error": round(self.worst, 6),
            "samples": self.samples,
        }


def fit(samples: Sequence[LoadSample]) -> Fit:
    """Fit the weights to at least six samples. The confidence intervals are a seeded bootstrap, stratified by
    phase so that no term loses its samples by chance; the same samples give the same intervals.

    Raises CalibrationError."""
    np = _numpy()
    if len(samples) < _LEAST:
        raise CalibrationError(
            f"{counted(len(samples), 'measurement')}, too few for a fit: {_LEAST} at least."
        )
    if any(s.seconds <= 0 for s in samples):
        raise CalibrationError("A measurement took no time.")
    spent = np.array([s.seconds * s.gpus for s in samples])
    counts = np.array([s.counts() for s in samples], dtype=float) / spent[:, None]
    ones = np.ones(len(samples))
    weights = _nonnegative(counts, ones)
    draws = np.random.default_rng(_SEED)
    phases = [np.flatnonzero([s.phase == p for s in samples]) for p in sorted({s.phase for s in samples})]
    again = []
    for _ in range(_RESAMPLINGS):
        rows = np.concatenate([draws.choice(rows, len(rows)) for rows in phases])
        again.append(_nonnegative(counts[rows], ones[rows]))
    low, high = np.percentile(np.array(again), (2.5, 97.5), axis=0)
    explained = counts @ weights
    total = float(((spent - spent.mean()) ** 2).sum())
    left = float(((spent - explained * spent) ** 2).sum())
    measured = counts.any(axis=0)
    return Fit(
        tuple(
            Weight(term, _ps(weights[i]), _ps(low[i]), _ps(high[i]), bool(measured[i]))
            for i, term in enumerate(TERMS)
        ),
        r_squared=1 - left / total if total else 1.0,
        worst=float(abs(explained - 1).max()),
        samples=len(samples),
    )


def _nonnegative(counts: Matrix, target: Matrix) -> Matrix:
    """Non-negative least squares (Lawson and Hanson, "Solving Least Squares Problems", 1974, chapter 23) by
    exhaustion: the best non-negative solution over all subsets of the five terms. Exact, and needs no solver
    tolerance."""
    np = _numpy()
    terms = [i for i in range(counts.shape[1]) if counts[:, i].any()]
    best: Matrix = np.zeros(counts.shape[1])
    least = float("inf")
    scale = np.abs(counts).max(axis=0)
    scale[scale == 0] = 1
    scaled = counts / scale
    for size in range(1, len(terms) + 1):
        for chosen in combinations(terms, size):
            columns = list(chosen)
            solution = np.linalg.lstsq(scaled[:, columns], target, rcond=None)[0]
            if (solution < 0).any():
                continue
            error = float(((scaled[:, columns] @ solution - target) ** 2).sum())
            if error < least:
                least = error
                best = np.zeros(counts.shape[1])
                best[columns] = solution / scale[columns]
    return best


def _ps(seconds: float) -> int:
    return round(seconds * 1e12)


def _numpy() -> Any:
    import numpy as np  # noqa: PLC0415  # a worker that never calibrates need not load it

    return np

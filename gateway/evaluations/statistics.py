"""Intervals for scores, and for differences between two models' scores of the same cases. Pure.

All intervals are two-sided, at LEVEL. Comparisons are paired: a hard case is hard for both models, and only
the cases on which they differ say something about the difference.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

LEVEL: Final = 0.95
RESAMPLES: Final = 2000
SEED: Final = 20_260_101
"""Fixed, so that the same scores always have the same interval."""
_AT_A_TIME: Final = 1_000_000
"""Drawn scores in memory at a time."""
_Z: Final = NormalDist().inv_cdf(0.5 + LEVEL / 2)


@dataclass(frozen=True, slots=True)
class Interval:
    low: float
    high: float


def wilson(successes: int, count: int) -> Interval:
    """Interval of a proportion: the score interval of Wilson (1927), without continuity correction; formula
    as in Newcombe (1998), "Two-sided confidence intervals for the single proportion", method 3. Unlike the
    textbook's, it holds for few cases and for proportions near 0 and 1."""
    if not count:
        return Interval(0.0, 1.0)
    share, z2 = successes / count, _Z * _Z
    centre = share + z2 / (2 * count)
    spread = _Z * math.sqrt(share * (1 - share) / count + z2 / (4 * count * count))
    denominator = 1 + z2 / count
    low = 0.0 if successes == 0 else (centre - spread) / denominator
    high = 1.0 if successes == count else (centre + spread) / denominator
    return Interval(low, high)


def paired_proportions(better: int, worse: int, count: int) -> Interval:
    """Interval of the difference of two proportions of the same `count` cases, of which only one model got
    `better` right, and only the other `worse`: the adjusted Wald interval of Bonett & Price (2012), "Adjusted
    Wald confidence interval for a difference of binomial proportions based on paired data". It is as wide as
    few cases deserve, even if no case differs, where a bootstrap's has no width at all."""
    total = count + 2
    gain, loss = (better + 1) / total, (worse + 1) / total
    spread = _Z * math.sqrt((gain + loss - (gain - loss) ** 2) / total)
    return Interval(max(-1.0, gain - loss - spread), min(1.0, gain - loss + spread))


def bootstrap(values: Sequence[float], *, seed: int = SEED) -> Interval:
    """Interval of the mean: the percentile bootstrap of Efron & Tibshirani, "An Introduction to the
    Bootstrap" (1993), chapter 13. With differences of paired scores it is the paired bootstrap. With few
    cases it is too narrow; with none, everything is possible."""
    import numpy as np  # noqa: PLC0415  # a worker that never evaluates need not load it

    if not values:
        return Interval(-math.inf, math.inf)
    sample = np.asarray(values, dtype=np.float64)
    means: list[NDArray[np.float64]] = []
    random, count = np.random.default_rng(seed), len(sample)
    each = max(1, _AT_A_TIME // count)
    for begin in range(0, RESAMPLES, each):
        drawn = random.integers(0, count, size=(min(each, RESAMPLES - begin), count))
        means.append(sample[drawn].mean(axis=1))
    tail = 50 * (1 - LEVEL)
    low, high = np.percentile(np.concatenate(means), [tail, 100 - tail])
    return Interval(float(low), float(high))


def mcnemar(better: int, worse: int) -> float:
    """P-value that a model is neither better nor worse, from the cases that only one of the two got right:
    McNemar's (1947) test in its exact form, a two-sided binomial test with probability 1/2."""
    count = better + worse
    if not count:
        return 1.0
    tail = ways = 1
    for k in range(1, min(better, worse) + 1):
        ways = ways * (count - k + 1) // k
        tail += ways
    return min(1.0, float(2 * tail / (1 << count)))

"""Compares embeddings, by sketches that are small enough for the registry. Pure.

A sketch has WIDTH numbers, whatever the vector's length: each component is added to one of them, with a sign
that depends on its position alone (feature hashing, Weinberger et al., 2009). That is linear and keeps
distances on average, so vectors are about as far apart as their sketches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from random import Random
from typing import Any

WIDTH = 32
MAX_LENGTH = 65_536
"""Components of a vector, far above any model's."""
DIGITS = 6
"""Decimal places that are kept; the noise of 32-bit numbers is smaller."""


def sketch(vector: Any) -> list[float]:
    """Sketch a vector's direction. Raises ValueError."""
    if type(vector) is not list or not 0 < len(vector) <= MAX_LENGTH:
        raise ValueError(f"{str(vector)[:40]!r} is not a vector")
    if not all(type(number) in (int, float) for number in vector):
        raise ValueError("a component of a vector is not a number")
    length = math.hypot(*vector)
    if not 0 < length < math.inf:
        raise ValueError(f"a vector has the length {length}")
    sums = [0.0] * WIDTH
    for index, (number, sign) in enumerate(zip(vector, _signs(len(vector)), strict=True)):
        sums[index % WIDTH] += number * sign
    return [round(total / length, DIGITS) for total in sums]


def distance(first: Sequence[float], second: Sequence[float]) -> float:
    """Mean distance of the vectors in two rows of sketches, from 0 to 2: √(2 - 2 cos)."""
    starts = range(0, len(first), WIDTH)
    apart = [math.dist(first[start : start + WIDTH], second[start : start + WIDTH]) for start in starts]
    return sum(apart) / len(apart)


@lru_cache(maxsize=16)
def _signs(length: int) -> tuple[int, ...]:
    source = Random(0)  # noqa: S311  # the same everywhere, for ever
    return tuple(1 if source.random() < 0.5 else -1 for _ in range(length))

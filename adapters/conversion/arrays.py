"""Weights as float32 arrays, from the types of safetensors files and back."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

STORED = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}
"""Type in a file → numpy's. numpy has no bfloat16: the upper half of a float32."""


def decode(stored: NDArray[np.generic], dtype: str) -> Floats:
    """`stored` has the numpy type `STORED[dtype]`."""
    if dtype == "BF16":
        return (stored.astype(np.uint32) << 16).view(np.float32)
    return stored.astype(np.float32)


def encode(values: Floats, dtype: str) -> NDArray[np.generic]:
    """Rounds to nearest, ties to even. What is too large for float16 becomes an infinity."""
    if dtype != "BF16":
        with np.errstate(over="ignore"):
            return values.astype(STORED[dtype])
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(values), 0x7FC0, rounded).astype("<u2")


def rounded(values: Floats, dtype: str) -> Floats:
    """What a reader of the encoded values will see."""
    return decode(encode(values, dtype), dtype)

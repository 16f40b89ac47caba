"""Slow start: an engine that has just come up gets a growing share of requests."""

from __future__ import annotations

LEAST_SHARE = 0.1
"""Initial share of requests."""


def share_after(seconds: float, period: float) -> float:
    """The share of its usual requests that an engine gets `seconds` after it came up, in (0, 1].

    A fresh engine has nothing in flight, so every request would otherwise choose it at once, while its caches
    are cold, its kernels uncompiled, and another failure likely. The share rises linearly from LEAST_SHARE to
    1 over `period` seconds."""
    if period <= 0:
        return 1.0
    return min(1.0, max(LEAST_SHARE, seconds / period))

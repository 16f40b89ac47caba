"""Who gets the canary: a pure function of the canary, the calling tenant and its end user.

Nothing is remembered: every worker comes to the same answer. Who is in at a weight stays in when the weight
rises, and who is in for one canary says nothing about the next.
"""

from __future__ import annotations

import hashlib
import random

BUCKETS = 10_000
"""A hundredth of a percent each."""


def bucket(canary: str, tenant: str, user: str) -> int:
    """Where an end user stands, 0 … BUCKETS - 1, uniform over users. `canary`: the version's full name,
    `acme/support@v3`."""
    key = f"{canary}|{tenant}|{user}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.sha256(key).digest()[:8]) % BUCKETS


def takes_canary(canary: str, weight: int, tenant: str, user: str) -> bool:
    """`weight`: percent. `user`: who the calling application says is asking; empty: nobody said, so this
    request is decided by itself, at random."""
    drawn = bucket(canary, tenant, user) if user else random.randrange(BUCKETS)  # noqa: S311 - a share of traffic is no secret
    return drawn < weight * BUCKETS // 100

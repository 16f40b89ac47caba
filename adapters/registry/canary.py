"""Decides which requests get the canary: a pure function of the canary, the tenant and its end user.

No state is kept, and every worker reaches the same decision. A user who gets the canary at one weight keeps
it at every higher weight. Different canaries select users independently.
"""

from __future__ import annotations

import hashlib
import random

BUCKETS = 10_000
"""0.01 percent each."""


def bucket(canary: str, tenant: str, user: str) -> int:
    """The end user's bucket, 0 … BUCKETS - 1, uniform over users. `canary`: the version's full name,
    `acme/support@v3`."""
    key = f"{canary}|{tenant}|{user}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.sha256(key).digest()[:8]) % BUCKETS


def takes_canary(canary: str, weight: int, tenant: str, user: str) -> bool:
    """Whether this request gets the canary. `weight` in percent. `user`: the end user as named by the
    application; if empty, the request is decided at random."""
    drawn = bucket(canary, tenant, user) if user else random.randrange(BUCKETS)  # noqa: S311 - a share of traffic is no secret
    return drawn < weight * BUCKETS // 100

"""What workers count of canaries and the live versions beside them.

Reported in batches. It is no part of the registry: what is lost delays a guard's decision, and changes none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class CanaryStore(Protocol):
    """Every method raises StoreUnavailableError if the server cannot be reached in time."""

    async def count_canaries(self, counts: Mapping[str, tuple[int, Mapping[str, int]]]) -> None:
        """Add what one worker counted, in one round trip: comparison → for how many ms its counts are kept
        from now on, and field → how many more. Never call it again with the same counts: the first call may
        have added them although it failed."""
        ...

    async def canary_counts(self, comparison: str) -> dict[str, int]:
        """Field → count, of all workers."""
        ...

"""What workers tell of API keys and tenants, for people to look at: last uses, and last errors.

Reported in batches, and bounded. It is no part of the registry: nothing depends on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

KEPT_USES: Final = 100_000
"""Keys whose last use is kept: those used last."""
KEPT_ERRORS: Final = 50
"""Errors kept for each owner: the last ones."""
ERRORS_KEPT_SECONDS: Final = 7 * 86_400
"""How long an owner's errors are kept after the last of them."""


class ActivityStore(Protocol):
    """Every method raises StoreUnavailableError if the server cannot be reached in time."""

    async def report_activity(self, uses: Mapping[str, int], errors: Mapping[str, Sequence[str]]) -> None:
        """Add what one worker saw, in one round trip. `uses`: id → Unix microseconds; a later time is never
        replaced by an earlier one. `errors`: owner → texts, oldest first."""
        ...

    async def last_uses(self, ids: Sequence[str]) -> dict[str, int]:
        """Id → when it was last used, for those of which that is known."""
        ...

    async def last_errors(self, owner: str) -> list[str]:
        """Those reported last come first."""
        ...

    async def last_errors_of(self, owners: Sequence[str]) -> list[list[str]]:
        """The same of several owners, in one round trip and in their order."""
        ...

"""Sessions of people in the console, and the links that begin one. No part of the registry: losing them signs
people out."""

from __future__ import annotations

from typing import Protocol


class SessionStore(Protocol):
    """Kept under the SHA-256 of their secret, so that who reads the store cannot use them. Every method
    raises StoreUnavailableError if the server cannot be reached in time."""

    async def put_session(self, digest: str, text: str, *, ttl_ms: int) -> None: ...

    async def session(self, digest: str) -> str | None:
        """Its text; None: it has ended, or never was."""
        ...

    async def take_session(self, digest: str) -> str | None:
        """Its text, and it ends: of several callers, one gets it."""
        ...

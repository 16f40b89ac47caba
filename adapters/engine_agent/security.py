"""What a GPU host's agent shows and trusts: to the gateway, to its own engine, and at its own door."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field

from adapters.security.engine_access import EngineAccess
from adapters.security.tls import Identity, Renewable


@dataclass(frozen=True, slots=True)
class HostSecurity:
    server: ssl.SSLContext | None = None
    """Of the agent server; None: it speaks plain HTTP."""
    engine: EngineAccess = field(default_factory=EngineAccess)
    identities: tuple[Identity, ...] = ()
    """Besides the one shown to the engine: the agent server's, and the one shown to the gateway."""

    @property
    def renewables(self) -> tuple[Renewable, ...]:
        return (*self.identities, *self.engine.renewables)

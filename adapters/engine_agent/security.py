"""TLS identities of an agent: for the gateway, for its engine and for its own server."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field

from adapters.security.engine_access import EngineAccess
from adapters.security.tls import Identity, Renewable


@dataclass(frozen=True, slots=True)
class HostSecurity:
    server: ssl.SSLContext | None = None
    """The agent server's certificate; None for plain HTTP."""
    engine: EngineAccess = field(default_factory=EngineAccess)
    identities: tuple[Identity, ...] = ()
    """The agent server's certificate and the one presented to the gateway."""

    @property
    def renewables(self) -> tuple[Renewable, ...]:
        return (*self.identities, *self.engine.renewables)

"""What a GPU host's agent shows and trusts: to the gateway, to its own engine, and at its own door."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field

from adapters.engine_access import EngineAccess
from adapters.tls import Identity, Renewable


@dataclass(frozen=True, slots=True)
class HostSecurity:
    server: ssl.SSLContext | None = None
    """Of the desk; None: it speaks plain HTTP."""
    engine: EngineAccess = field(default_factory=EngineAccess)
    identities: tuple[Identity, ...] = ()
    """Besides the one shown to the engine: the desk's, and the one shown to the gateway."""

    @property
    def renewables(self) -> tuple[Renewable, ...]:
        return (*self.identities, *self.engine.renewables)

"""Certificates, keys and tokens of this process: loaded from settings, checked at start, renewed while it
runs."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import TYPE_CHECKING

from adapters.security.engine_access import EngineAccess
from adapters.security.renewal import Identity, Renewable, warn_if_not_valid
from adapters.security.renewal import watch as watch_files
from adapters.security.tls import TlsError
from gateway.config import Settings, SettingsError

if TYPE_CHECKING:  # metrics must not be imported before the workers' shared values are set up
    from gateway.observability.metrics import Metrics


class TransportSecurity:
    """TLS of the listener and access to engines, for one process. Raises SettingsError."""

    def __init__(self, settings: Settings) -> None:
        self.server: ssl.SSLContext | None = None
        self._identities: list[Identity] = []
        self._renewables: list[Renewable] = []
        try:
            name = "FLORIN_TLS_CERT, FLORIN_TLS_KEY"
            if pair := both(settings.tls_cert, settings.tls_key, name):
                listener = Identity("server", *pair)
                self._add(listener)
                name = "FLORIN_TLS_CLIENT_CA"
                self.server = listener.server_context(settings.tls_client_ca)
            elif settings.tls_client_ca:
                raise SettingsError(
                    "FLORIN_TLS_CLIENT_CA has no effect without FLORIN_TLS_CERT and FLORIN_TLS_KEY."
                )
            name = "FLORIN_ENGINE_CERT, FLORIN_ENGINE_KEY"
            certificate = both(settings.engine_cert, settings.engine_key, name)
            name = "FLORIN_ENGINE_CA, FLORIN_ENGINE_CERT, FLORIN_ENGINE_KEY or FLORIN_ENGINE_TOKEN_FILE"
            self.engines = EngineAccess(
                ca=settings.engine_ca, certificate=certificate, token=settings.engine_token_file
            )
        except TlsError as error:
            raise SettingsError(f"{name}: {error}") from error
        if self.engines.identity:
            self._add(self.engines.identity)
        if self.engines.token:
            self._renewables.append(self.engines.token)

    @property
    def identities(self) -> tuple[Identity, ...]:
        """Certificates in use, with the errors of their renewals."""
        return tuple(self._identities)

    def warn(self) -> None:
        for identity in self._identities:
            warn_if_not_valid(identity)

    async def watch(self, metrics: Metrics) -> None:
        """Pick up renewed files and export certificate expiry, until cancelled."""

        def show() -> None:
            for identity in self._identities:
                metrics.certificate(
                    identity.name, expiry=identity.pair.not_after, failing=bool(identity.trouble)
                )

        await watch_files(self._renewables, show)

    def _add(self, identity: Identity) -> None:
        self._identities.append(identity)
        self._renewables.append(identity)


def both(certificate: Path | None, key: Path | None, names: str) -> tuple[Path, Path] | None:
    """The pair, or None. Raises SettingsError if only one is set."""
    if certificate and key:
        return certificate, key
    if certificate or key:
        raise SettingsError(f"{names}: set both or neither.")
    return None

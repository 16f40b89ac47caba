"""The certificates, keys and tokens of `florin engine run`, from FLORIN_* variables."""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass

from adapters.engine_agent.engine_flags import Launch
from adapters.engine_agent.state import HostSecurity
from adapters.reconcile import exposure
from adapters.security.engine_access import EngineAccess
from adapters.security.renewal import Identity, warn_if_not_valid
from adapters.security.tls import TlsError
from gateway.commands import gateway_tls
from gateway.commands.client import UsageError

log = logging.getLogger(__name__)

_TRUE = {"1", "true", "yes", "on"}


@dataclass(frozen=True, slots=True)
class Security:
    host: HostSecurity
    gateway: ssl.SSLContext | None
    engine_headers: dict[str, str]
    """For an engine whose key is not in FLORIN_ENGINE_TOKEN_FILE."""
    behind_proxy: bool

    def warn(self, agent_host: str) -> None:
        """Log at start what is about to expire and what travels unencrypted."""
        engine = self.host.engine.identity
        for identity in (*self.host.identities, *((engine,) if engine else ())):
            warn_if_not_valid(identity)
        finding = exposure.of_listener(
            agent_host,
            tls=self.host.server is not None,
            behind_proxy=self.behind_proxy,
            what="The agent",
            remedy="Set FLORIN_TLS_CERT and FLORIN_TLS_KEY on this host, or, on a private network, "
            "FLORIN_BEHIND_PROXY=true.",
        )
        if finding.status != "ok":
            log.warning("%s %s", finding.message, finding.remedy)


def of(
    launch: Launch, advertise: str | None, *, api_url: str, environ: Mapping[str, str] = os.environ
) -> Security:
    """Raises UsageError."""
    if launch.tls and (advertise or "").startswith("http://"):
        raise UsageError(f"--advertise {advertise} must begin with https://: the engine speaks TLS.")
    try:
        shown = gateway_tls.identity(environ)
        server_identity = _pair(environ, "TLS", "agent")
        client_ca = gateway_tls.file(environ, "FLORIN_TLS_CLIENT_CA")
        engine = _pair(environ, "ENGINE", "engine client")
        access = EngineAccess(
            ca=gateway_tls.file(environ, "FLORIN_ENGINE_CA"),
            certificate=engine.files if engine else None,
            token=gateway_tls.file(environ, "FLORIN_ENGINE_TOKEN_FILE"),
        )
        trust = gateway_tls.trust(api_url, shown, environ)
        server = server_identity.server_context(client_ca) if server_identity else None
    except TlsError as error:
        raise UsageError(str(error)) from error
    if client_ca and not server_identity:
        raise UsageError("FLORIN_TLS_CLIENT_CA requires FLORIN_TLS_CERT and FLORIN_TLS_KEY.")
    if launch.mutual and not access.identity:
        raise UsageError(
            "The engine requires client certificates (--ssl-cert-reqs 2), from this agent too: set "
            "FLORIN_ENGINE_CERT and FLORIN_ENGINE_KEY."
        )
    return Security(
        HostSecurity(server, access, tuple(identity for identity in (server_identity, shown) if identity)),
        trust,
        {"authorization": f"Bearer {launch.api_key}"} if launch.api_key else {},
        environ.get("FLORIN_BEHIND_PROXY", "").strip().lower() in _TRUE,
    )


def _pair(environ: Mapping[str, str], kind: str, name: str) -> Identity | None:
    """Raises TlsError."""
    certificate, key = f"FLORIN_{kind}_CERT", f"FLORIN_{kind}_KEY"
    files = gateway_tls.file(environ, certificate), gateway_tls.file(environ, key)
    try:
        if files[0] and files[1]:
            return Identity(name, files[0], files[1])
    except TlsError as error:
        raise TlsError(f"{certificate}, {key}: {error}") from error
    if files[0] or files[1]:
        raise TlsError(f"{certificate}, {key}: set both or neither.")
    return None

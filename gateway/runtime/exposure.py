"""Checks what a gateway exposes, for `florin doctor` and for its log at start-up."""

from __future__ import annotations

from collections.abc import Iterable

from adapters.model import Engine
from adapters.reconcile import exposure
from adapters.reconcile.diagnosis import Diagnosis
from adapters.security.tls import Identity
from gateway.config import Settings

REMEDY = (
    "Set FLORIN_TLS_CERT and FLORIN_TLS_KEY. If a proxy in front terminates TLS and nothing else can reach "
    "this port, set FLORIN_BEHIND_PROXY=true."
)


def of_listener(settings: Settings, host: str) -> Diagnosis:
    """`host`: the bound address, or FLORIN_HOST."""
    return exposure.of_listener(
        host,
        tls=settings.tls_cert is not None,
        behind_proxy=settings.behind_proxy,
        what="The gateway",
        remedy=REMEDY,
    )


def exposure_of(
    settings: Settings, identities: Iterable[Identity], engines: Iterable[Engine], now: float
) -> list[Diagnosis]:
    """`identities`: those of `TransportSecurity`; `now`: Unix seconds. Reads file modes in the state
    directory, so it blocks."""
    return [
        of_listener(settings, settings.host),
        *exposure.of_certificates(identities, now),
        *exposure.of_engines(engines),
        *exposure.of_docs(settings.host, served=settings.api_docs),
        *exposure.of_state(settings.state_dir),
    ]

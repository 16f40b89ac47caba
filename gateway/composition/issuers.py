"""Opens what verifies the tokens of people and of engine hosts, where their issuers are set."""

from __future__ import annotations

from typing import TYPE_CHECKING

from adapters.security.tls import TlsError
from gateway.composition.context import WorkerContext
from gateway.composition.registry import Registry
from gateway.config import SettingsError

if TYPE_CHECKING:
    from gateway.tenants.host_tokens import HostTokens
    from gateway.tenants.people.verification import People


def open_people(context: WorkerContext, registry: Registry) -> People | None:
    if not context.settings.oidc_issuer:
        return None
    from gateway.tenants.people.verification import People  # noqa: PLC0415  # it imports cryptography

    try:
        people = People(context.settings, registry.directory, context.clock.now)
    except TlsError as error:
        raise SettingsError(f"FLORIN_OIDC_CA: {error}") from error
    context.stack.push_async_callback(people.issuer.close)
    return people


def open_host_tokens(context: WorkerContext) -> HostTokens | None:
    if not context.settings.host_issuer:
        return None
    from gateway.tenants.host_tokens import HostTokens  # noqa: PLC0415  # likewise

    try:
        tokens = HostTokens(context.settings, context.clock.now)
    except TlsError as error:
        raise SettingsError(f"FLORIN_HOST_ISSUER_CA: {error}") from error
    context.stack.push_async_callback(tokens.issuer.close)
    return tokens

"""Opens what verifies people's sign-ins, if FLORIN_OIDC_ISSUER is set."""

from __future__ import annotations

from typing import TYPE_CHECKING

from adapters.security.tls import TlsError
from gateway.composition.context import WorkerContext
from gateway.composition.registry import Registry
from gateway.config import SettingsError

if TYPE_CHECKING:
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

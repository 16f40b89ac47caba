"""Turns the token of a person who signed in into a key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gateway.config import Settings
from gateway.errors import FlorinError
from gateway.tenants.authentication import check_tenant
from gateway.tenants.directory import Directory, Key
from gateway.tenants.people.claims import RoleRules, check_times, person_of
from gateway.tenants.people.issuer import Issuer


class People:
    """Those of one issuer. Mutable: the rules, which a reload replaces. On the worker's event loop."""

    def __init__(self, settings: Settings, directory: Directory, clock: Callable[[], int]) -> None:
        """`clock`: Unix microseconds. Raises TlsError for a CA that cannot be used."""
        self.settings = settings
        self._directory = directory
        self._clock = clock
        self._rules = RoleRules.of(settings)
        self.issuer = Issuer(settings.oidc_issuer, ca=settings.oidc_ca)

    def reconfigure(self, settings: Settings) -> None:
        self.settings, self._rules = settings, RoleRules.of(settings)

    @property
    def clients(self) -> tuple[str, ...]:
        """Client ids with which people sign in."""
        cli, own = self.settings.oidc_cli_client_id, self.settings.oidc_client_id
        return (own, cli) if cli and cli != own else (own,)

    @property
    def audience(self) -> tuple[str, ...]:
        """The audiences whose tokens are accepted."""
        return (self.settings.oidc_audience,) if self.settings.oidc_audience else self.clients

    async def identify(self, token: bytes) -> Key:
        """The person whose token this is. Raises FlorinError."""
        claims = await self.claims(token.decode("latin-1"), self.audience)
        if not self.settings.oidc_audience and claims.get("azp", self.clients[0]) not in self.clients:
            raise FlorinError(
                "invalid_token", "The token is not valid: it was given to another client (`azp`)."
            )
        return self.person(claims)

    def person(self, claims: dict[str, Any]) -> Key:
        """The person with these verified claims. Raises FlorinError."""
        expires = check_times(claims, self._clock())
        key = person_of(claims, self._rules, self._directory.tenants, expires=expires)
        check_tenant(self._directory, key)
        return key

    async def claims(self, token: str, audience: tuple[str, ...]) -> dict[str, Any]:
        """The claims of a token of the issuer's, for this audience. Raises FlorinError."""
        claims = await self.issuer.claims(token, audience)
        check_times(claims, self._clock())
        return claims

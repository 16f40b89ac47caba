"""Maps the claims of a verified token to a person and a role. Pure: the clock is passed in."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from gateway.config import Settings
from gateway.config.identity import PERSON_ROLES, role_entries
from gateway.errors import FlorinError
from gateway.tenants.directory import TENANT_ROLES, Key, Role

LEEWAY: Final = 30
"""Seconds by which the clocks of the issuer and of Florin may differ."""
_MOST_GROUPS: Final = 5
"""Shown to a person who has no role."""
_LONGEST: Final = 200
"""Characters of a person's name."""

Claims = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RoleRules:
    """What gives a person a role."""

    claim: str
    roles: tuple[tuple[str, Role, str], ...]
    """(value of the claim, role, tenant or "")"""
    tenant_claim: str
    person_claim: str

    @classmethod
    def of(cls, settings: Settings) -> Self:
        entries = role_entries(settings.oidc_roles)
        ranked = sorted(entries, key=lambda entry: PERSON_ROLES.index(entry[1]))  # stable: then as listed
        return cls(
            settings.oidc_roles_claim,
            tuple((value, Role(role), tenant) for value, role, tenant in ranked),
            settings.oidc_tenant_claim,
            settings.oidc_person_claim,
        )


SIGN_IN_EXPIRED: Final = "Your sign-in has expired. Sign in again: florin login"


def check_times(claims: Claims, now: int, expired: str = SIGN_IN_EXPIRED) -> int:
    """When the token expires, Unix microseconds. `now`: likewise. `expired`: what an expired one's sender is
    told. Raises FlorinError unless it is valid now."""
    seconds = now / 1e6
    expires = _time(claims, "exp")
    if expires is None:
        raise FlorinError("invalid_token", "The token never expires (no `exp`), so it is not accepted.")
    if expires + LEEWAY <= seconds:
        raise FlorinError("expired_token", expired)
    for name in ("nbf", "iat"):
        begins = _time(claims, name)
        if begins is not None and begins - LEEWAY > seconds:
            raise FlorinError(
                "invalid_token",
                f"The token is not valid yet (`{name}`): compare the clocks of both machines.",
            )
    return int(expires * 1_000_000)


def _time(claims: Claims, name: str) -> float | None:
    """Unix seconds. Raises FlorinError if the claim is no time that a clock can show."""
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1 << 40:
        raise FlorinError("invalid_token", f"`{name}` of the token is not a time.")
    return float(value) if math.isfinite(value) else None


def person_of(claims: Claims, rules: RoleRules, tenants: Collection[str], *, expires: int) -> Key:
    """The person, as a key that expires with the token, `expires` (Unix microseconds). `tenants`: those that
    exist. Raises FlorinError for a person who has no role."""
    name = _name(claims, rules.person_claim)
    values = _values(_claim(claims, rules.claim))
    missing = ""
    for value, role, named in rules.roles:
        if value not in values:
            continue
        if role not in TENANT_ROLES:
            return _person(name, role, "", claims, expires)
        tenant = named or _text(_claim(claims, rules.tenant_claim)) if rules.tenant_claim else named
        if tenant in tenants:
            return _person(name, role, tenant, claims, expires)
        missing = missing or _no_tenant(tenant, rules.tenant_claim)
    raise FlorinError("no_role", missing or _unmapped(name, rules.claim, values, claims))


def _person(name: str, role: Role, tenant: str, claims: Claims, expires: int) -> Key:
    issued = _time(claims, "iat")
    names = (_text(claims.get(claim)) for claim in ("email", "name", "preferred_username"))
    label = next(filter(None, names), "")
    return Key(
        f"oidc@{tenant}:{name}" if tenant else f"oidc:{name}",
        tenant,
        role,
        digest="",
        created=int((issued or 0) * 1_000_000),
        expires=expires + LEEWAY * 1_000_000,
        label=label if _shown(label) else "",
    )


def _name(claims: Claims, claim: str) -> str:
    name = text_of(claims, claim)
    if not name or not _shown(name):
        raise FlorinError(
            "invalid_token",
            f"The token does not name the person: no usable claim {claim!r} (FLORIN_OIDC_PERSON_CLAIM).",
        )
    if claim == "email" and claims.get("email_verified") in (False, "false"):
        raise FlorinError("invalid_token", "The issuer has not verified your e-mail address.")
    return name


def _shown(text: str) -> bool:
    """Whether it may be in logs and tables."""
    return len(text) <= _LONGEST and text.isprintable()


def text_of(claims: Claims, path: str) -> str:
    """Empty if there is no such claim, or it is no text."""
    return _text(_claim(claims, path))


def _claim(claims: Claims, path: str) -> Any:
    """A claim of this name, or inside objects: `realm_access.roles`. None: there is none. Names may
    themselves have dots, as URLs and some client ids do."""
    if path in claims:
        return claims[path]
    for dot in (index for index, char in enumerate(path) if char == "."):
        inner = claims.get(path[:dot])
        if isinstance(inner, Mapping) and (claim := _claim(inner, path[dot + 1 :])) is not None:
            return claim
    return None


def _values(claim: Any) -> list[str]:
    """Groups as issuers send them: one, or a list."""
    listed = claim if isinstance(claim, list) else [claim]
    return [value for value in listed if isinstance(value, str)]


def _text(claim: Any) -> str:
    return claim if isinstance(claim, str) else ""


def _no_tenant(tenant: str, claim: str) -> str:
    if tenant:
        return f"You belong to tenant {tenant[:80]!r}, which does not exist. Ask the operator to add it."
    where = f"the claim {claim!r} is missing" if claim else "neither FLORIN_OIDC_ROLES nor a claim names it"
    return f"Your role belongs to a tenant, but the gateway does not know which: {where}."


def _unmapped(name: str, claim: str, values: list[str], claims: Claims) -> str:
    elsewhere = claims.get("_claim_names")
    if not values and (claims.get("hasgroups") or (isinstance(elsewhere, Mapping) and claim in elsewhere)):
        return (
            f"You are signed in as {name}, but in more groups than the issuer puts into a token. Ask the "
            "operator to give roles by a claim of fewer values, such as app roles (FLORIN_OIDC_ROLES_CLAIM)."
        )
    shown = ", ".join(repr(value[:80]) for value in values[:_MOST_GROUPS])
    groups = f"has {shown}{', …' if len(values) > _MOST_GROUPS else ''}" if values else "is missing or empty"
    return (
        f"You are signed in as {name}, but have no role here: the claim {claim!r} of your token {groups}. "
        "Ask the operator to give one of your groups a role (FLORIN_OIDC_ROLES)."
    )

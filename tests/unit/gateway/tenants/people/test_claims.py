"""Whose a token is, and which role it gives."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.config import Settings
from gateway.errors import FlorinError
from gateway.tenants.people.claims import LEEWAY, RoleRules, check_times, person_of

NOW = 1_800_000_000
RULES: dict[str, Any] = {
    "oidc_issuer": "https://id.example.com",
    "oidc_client_id": "florin",
    "oidc_roles": "admins=tenant-admin, bolts=tenant:bolt, ops=operator, a=b=finance, examiners=auditor",
}


def person(claims: dict[str, Any], **settings: Any):
    rules = RoleRules.of(Settings(**(RULES | settings)))
    return person_of({"sub": "u"} | claims, rules, {"acme", "bolt"}, expires=NOW * 1_000_000)


@pytest.mark.parametrize(
    ("claims", "settings", "found"),
    [
        ({"groups": ["ops"]}, {}, ("oidc:u", "operator", "")),
        ({"groups": ["admins", "a=b", "ops"]}, {}, ("oidc:u", "operator", "")),
        ({"groups": ["admins", "a=b"]}, {}, ("oidc:u", "finance", "")),
        ({"groups": ["admins", "examiners"]}, {}, ("oidc:u", "auditor", "")),
        ({"groups": "bolts"}, {}, ("oidc@bolt:u", "tenant", "bolt")),
        ({"groups": ["bolts"], "org": "acme"}, {"oidc_tenant_claim": "org"}, ("oidc@bolt:u", "tenant", "bolt")),
        ({"groups": ["admins"], "org": "acme"}, {"oidc_tenant_claim": "org"}, ("oidc@acme:u", "tenant-admin", "acme")),
        ({"realm_access": {"roles": ["ops"]}}, {"oidc_roles_claim": "realm_access.roles"}, ("oidc:u", "operator", "")),
        (
            {"resource_access": {"florin.example.com": {"roles": ["ops"]}}},
            {"oidc_roles_claim": "resource_access.florin.example.com.roles"}, ("oidc:u", "operator", ""),
        ),
        ({"https://a.b/roles": ["ops"]}, {"oidc_roles_claim": "https://a.b/roles"}, ("oidc:u", "operator", "")),
        ({"groups": ["ops"], "email": "j@x.y"}, {"oidc_person_claim": "email"}, ("oidc:j@x.y", "operator", "")),
        ({"roles": ["ops"], "oid": "b7"}, {"oidc_roles_claim": "roles", "oidc_person_claim": "oid"}, ("oidc:b7", "operator", "")),
        # A tenant's person whose first role leads to no tenant has the next one.
        ({"groups": ["admins", "bolts"], "org": "gone"}, {"oidc_tenant_claim": "org"}, ("oidc@bolt:u", "tenant", "bolt")),
    ],
)  # fmt: skip
def test_a_role_and_a_tenant(claims, settings, found):
    key = person(claims, **settings)
    assert (key.id, key.role, key.tenant) == found
    assert key.expires == (NOW + LEEWAY) * 1_000_000
    assert key.is_person


@pytest.mark.parametrize(
    ("claims", "settings", "code", "words"),
    [
        ({}, {}, "no_role", "is missing or empty"),
        ({"groups": [1, None, {"ops": 1}, ["ops"]]}, {}, "no_role", "is missing or empty"),
        ({"groups": {"ops": True}}, {}, "no_role", "is missing or empty"),
        ({"hasgroups": True}, {}, "no_role", "in more groups than the issuer puts into a token"),
        ({"_claim_names": {"groups": "src1"}}, {}, "no_role", "in more groups than the issuer puts into a token"),
        ({"_claim_names": {"roles": "src1"}}, {}, "no_role", "is missing or empty"),
        ({"groups": "ops admins"}, {}, "no_role", "has 'ops admins'"),
        ({"groups": [f"g{i}" for i in range(900)]}, {}, "no_role", "'g4', …"),
        ({"groups": ["admins"]}, {}, "no_role", "neither FLORIN_OIDC_ROLES nor a claim names it"),
        ({"groups": ["admins"], "org": ["acme"]}, {"oidc_tenant_claim": "org"}, "no_role", "'org' is missing"),
        ({"groups": ["admins"], "org": "gone"}, {"oidc_tenant_claim": "org"}, "no_role", "'gone', which does not exist"),
        ({"groups": ["ops"], "email": 5}, {"oidc_person_claim": "email"}, "invalid_token", "no usable claim 'email'"),
        (
            {"groups": ["ops"], "email": "a@b", "email_verified": False}, {"oidc_person_claim": "email"},
            "invalid_token", "not verified your e-mail",
        ),
        ({"groups": ["ops"], "sub": "a\x1b[2J"}, {}, "invalid_token", "no usable claim 'sub'"),
    ],
)  # fmt: skip
def test_nobody_without_both(claims, settings, code, words):
    with pytest.raises(FlorinError) as refused:
        person(claims, **settings)
    assert refused.value.code == code
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("exp", "more", "code"),
    [
        (NOW - LEEWAY + 1, {}, ""),
        (NOW - LEEWAY, {}, "expired_token"),
        (NOW + 60.5, {"nbf": NOW + LEEWAY, "iat": NOW}, ""),
        (NOW + 60, {"nbf": NOW + LEEWAY + 1}, "invalid_token"),
        (NOW + 60, {"iat": NOW + LEEWAY + 1}, "invalid_token"),
        (None, {}, "invalid_token"),
        (True, {}, "invalid_token"),
        (float("nan"), {}, "invalid_token"),
        (float("inf"), {}, "invalid_token"),
        (-1, {}, "invalid_token"),
    ],
)
def test_times(exp, more, code):
    try:
        assert check_times({"exp": exp} | more, NOW * 1_000_000) == int(exp * 1_000_000)
        assert not code
    except FlorinError as error:
        assert error.code == code  # noqa: PT017  # of either outcome


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("oidc_issuer", "http://id.example.com", "https://"),
        ("oidc_issuer", "https://user:pw@id.example.com", "https://"),
        ("oidc_issuer", "https://id.example.com/?a=b", "https://"),
        ("oidc_issuer", "id.example.com", "https://"),
        ("oidc_client_id", "", "required"),
        ("oidc_roles", "", "no one has a role"),
        ("oidc_roles", "ops", "VALUE=ROLE"),
        ("oidc_roles", "ops=root", "VALUE=ROLE"),
        ("oidc_roles", "ops=engine", "VALUE=ROLE"),
        ("oidc_roles", "ops=operator:acme", "belongs to none"),
    ],
)
def test_settings_that_cannot_work_are_refused(name, value, words):
    with pytest.raises(ValueError, match=words):
        Settings(**(RULES | {name: value}))

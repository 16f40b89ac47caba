"""Settings of the people and engine hosts that issuers vouch for, and of tenants' cached prompts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from pydantic import BaseModel, Field, NonNegativeFloat, SecretStr, ValidationInfo, field_validator

from adapters.security.ip_addresses import is_loopback, parse_address
from gateway.config.field_types import RELOAD, AbsolutePath, listed

PERSON_ROLES: Final = ("operator", "finance", "auditor", "tenant-admin", "tenant")
"""Roles that a person can have, highest precedence first."""
LEAST_CACHE_SECRET: Final = 32
_OF_TENANTS: Final = frozenset({"tenant-admin", "tenant"})


class IdentitySettings(BaseModel):
    oidc_issuer: str = Field(
        "",
        description="URL of the OpenID Connect issuer whose people may sign in, exactly as it names itself "
        "(`issuer` of `/.well-known/openid-configuration`): https, or http on this machine. Empty: only keys "
        "are accepted.",
    )
    oidc_client_id: str = Field(
        "",
        validate_default=True,
        description="Florin's client id at the issuer. Required with `FLORIN_OIDC_ISSUER`.",
    )
    oidc_client_secret: SecretStr = Field(
        SecretStr(""), description="Secret of that client, if it has one. The command line never gets it."
    )
    oidc_cli_client_id: str = Field(
        "",
        description="Client id with which `florin login` signs in: a public client without a secret. Empty: "
        "`FLORIN_OIDC_CLIENT_ID`.",
    )
    oidc_audience: str = Field(
        "",
        description="Audience (`aud`) of the access tokens that are accepted. Empty: ID tokens are accepted, "
        "whose audience is the client id; choose that if the issuer's access tokens are not JWTs.",
    )
    oidc_scopes: str = Field(
        "openid profile email offline_access",
        description="Scopes that a sign-in requests, separated by spaces. `offline_access` is left out if "
        "the issuer does not list it.",
    )
    oidc_cli_prompt: str = Field(
        "",
        max_length=100,
        description="`prompt` that `florin login` sends, such as `consent` or `select_account`. Some issuers "
        "give refresh tokens only with `consent` (OpenID Connect Core 11). Empty: none.",
        json_schema_extra=RELOAD,
    )
    oidc_roles_claim: str = Field(
        "groups",
        min_length=1,
        max_length=200,
        description="Claim with a person's roles or groups, a text or a list; `realm_access.roles` looks "
        "inside an object.",
        json_schema_extra=RELOAD,
    )
    oidc_roles: str = Field(
        "",
        validate_default=True,
        description="Comma-separated `VALUE=ROLE`: which value of that claim gives which role of `operator`, "
        "`finance`, `auditor`, `tenant-admin` and `tenant`. `VALUE=tenant-admin:acme` also names the tenant. "
        "Required with `FLORIN_OIDC_ISSUER`; a person with several values has the first role in this order.",
        json_schema_extra=RELOAD,
    )
    oidc_tenant_claim: str = Field(
        "",
        max_length=200,
        description="Claim with the name of the tenant to which a person of a tenant's role belongs, unless "
        "`FLORIN_OIDC_ROLES` names it.",
        json_schema_extra=RELOAD,
    )
    oidc_person_claim: str = Field(
        "sub",
        min_length=1,
        max_length=200,
        description="Claim that names a person in the audit log, as `oidc:VALUE`. `sub` is never given to "
        "another person; `email` is easier to read.",
        json_schema_extra=RELOAD,
    )
    cache_secret: str = Field(
        "",
        description="Secret of at least 32 characters, from which each tenant's salt of the engines' prefix "
        "caches is made; the same on all hosts. Change it to rotate it: see `FLORIN_CACHE_SECRET_SPREAD`. "
        "Empty: one that Florin makes and keeps in Redis.",
        json_schema_extra=RELOAD,
    )
    cache_secret_spread: NonNegativeFloat = Field(
        600.0,
        description="Seconds over which tenants take up a new cache secret, one after the other. Each then "
        "begins with a cold prefix cache. 0: all at once.",
        json_schema_extra=RELOAD,
    )
    oidc_ca: AbsolutePath | None = Field(
        None, description="The only CA certificates (PEM) to verify the issuer with. Empty: the system's."
    )

    controller_subject: str = Field(
        "",
        max_length=1000,
        description="Subject (`sub`) that is the controller of Kubernetes resources, with the tokens of "
        "`FLORIN_HOST_ISSUER`: `system:serviceaccount:serving:florin-controller`. Its tokens have the rights "
        "of a key of role `controller`. Empty: none is.",
    )
    host_issuer: str = Field(
        "",
        description="URL of the issuer with whose tokens engine hosts may enrol, exactly as it names itself: "
        "a Kubernetes cluster's (`kubectl get --raw /.well-known/openid-configuration`), or any that signs "
        "JWTs for workloads. Empty: hosts enrol with Florin's own tokens only.",
    )
    host_audience: str = Field(
        "florin", min_length=1, description="Audience (`aud`) for which those tokens must be."
    )
    host_subjects: str = Field(
        "",
        validate_default=True,
        description="JSON object: the subjects (`sub`) whose hosts may enrol, each with what their "
        "registrations are pinned to, as in an enrolment token: "
        '`{"system:serviceaccount:serving:florin-h100": {"gpu_type": "H100", "labels": {"pool": "chat"}}}`. '
        "`{engine}` in an `address` stands for the engine's name. Required with `FLORIN_HOST_ISSUER`, unless "
        "`FLORIN_CONTROLLER_SUBJECT` is set. Read when the gateway starts: a change needs a restart.",
    )
    host_engine_claim: str = Field(
        "kubernetes.io.pod.name",
        min_length=1,
        max_length=200,
        description="Claim that names the host's engine; dots look inside objects.",
    )
    host_issuer_ca: AbsolutePath | None = Field(
        None, description="The only CA certificates (PEM) to verify that issuer with. Empty: the system's."
    )
    host_issuer_token_file: AbsolutePath | None = Field(
        None,
        description="File with the token that Florin sends to that issuer when it fetches its public keys. A "
        "Kubernetes API server asks for one. Empty: none.",
    )

    @field_validator("oidc_issuer", "host_issuer")
    @classmethod
    def _issuer_url(cls, text: str) -> str:
        if text and not safe_url(text):
            msg = "must be an https:// URL without query and fragment (http:// on this machine only)"
            raise ValueError(msg)
        return text

    @field_validator("host_issuer")
    @classmethod
    def _of_the_controller(cls, text: str, info: ValidationInfo) -> str:
        if not text and info.data.get("controller_subject"):
            raise ValueError("is required with FLORIN_CONTROLLER_SUBJECT")
        return text

    @field_validator("cache_secret")
    @classmethod
    def _long(cls, text: str) -> str:
        if text and len(text) < LEAST_CACHE_SECRET:
            msg = f"must have at least {LEAST_CACHE_SECRET} characters: make one with `openssl rand -hex 32`"
            raise ValueError(msg)
        return text

    @field_validator("oidc_client_id")
    @classmethod
    def _client(cls, text: str, info: ValidationInfo) -> str:
        if not text and info.data.get("oidc_issuer"):
            raise ValueError("is required with FLORIN_OIDC_ISSUER")
        return text

    @field_validator("oidc_roles")
    @classmethod
    def _roles(cls, text: str, info: ValidationInfo) -> str:
        entries = role_entries(text)
        if not entries and info.data.get("oidc_issuer"):
            raise ValueError("is required with FLORIN_OIDC_ISSUER: without it, no one has a role")
        return text

    @field_validator("host_subjects")
    @classmethod
    def _subjects(cls, text: str, info: ValidationInfo) -> str:
        if text and not _is_object_of_objects(text):
            raise ValueError('must be a JSON object of objects: {"SUBJECT": {"gpu_type": "H100"}}')
        if not text and info.data.get("host_issuer") and not info.data.get("controller_subject"):
            raise ValueError("is required with FLORIN_HOST_ISSUER: without it, no host may enrol")
        return text

    @field_validator("oidc_ca", "host_issuer_ca")
    @classmethod
    def _readable(cls, path: Path | None) -> Path | None:
        if path is not None and not path.is_file():
            raise ValueError("is not a file")
        return path


def role_entries(text: str) -> list[tuple[str, str, str]]:
    """(value of the claim, role, tenant or "") of each entry. Raises ValueError."""
    entries = []
    for entry in listed(text):
        value, _, given = entry.rpartition("=")
        role, _, tenant = given.partition(":")
        if not value or role not in PERSON_ROLES:
            msg = f"{entry!r} must be VALUE=ROLE, and ROLE one of {', '.join(PERSON_ROLES)}"
            raise ValueError(msg)
        if tenant and role not in _OF_TENANTS:
            msg = f"{entry!r} names a tenant, but role {role} belongs to none"
            raise ValueError(msg)
        entries.append((value, role, tenant))
    return entries


def _is_object_of_objects(text: str) -> bool:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(document, dict) and all(isinstance(value, dict) for value in document.values())


def safe_url(text: str) -> bool:
    """Whether the connection to this URL cannot be tampered with on the way."""
    try:
        url = urlsplit(text)
        host, _ = url.hostname or "", url.port
    except ValueError:
        return False
    if not host or url.username is not None or url.query or url.fragment or not text.isprintable():
        return False
    return url.scheme == "https" or (url.scheme == "http" and _is_local(host))


def _is_local(host: str) -> bool:
    return host == "localhost" or is_loopback(parse_address(host))

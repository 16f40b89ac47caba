"""What a key can learn about itself and its tenant, and how people sign in."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from gateway.schemas.base import Answer
from gateway.tenants.keys.schemas import Key
from gateway.tenants.schemas.tenants import AtAGlance, OwnQueue, OwnTenant, QuotaUse
from gateway.tenants.terms import Budget, Limits


class Account(OwnTenant, AtAGlance):
    """A tenant's view of itself."""

    queue: OwnQueue


class OwnTerms(Answer):
    base_access: bool = Field(description="It may call the base model.")
    limits: Limits
    budget: Budget
    quotas: dict[str, QuotaUse] = Field(description="Each with what is used of it.")


class Me(Key):
    """The key of the request."""

    tenant_terms: OwnTerms | None = Field(description="Of a tenant's key: its tenant's terms.")


class SignInLink(Answer):
    id: str = Field(description="The key that it signs in as.")
    url: str = Field(description="A path of this gateway, with the link's secret in the fragment.")
    expires: int = Field(description="Unix microseconds, UTC.")


class Issuer(Answer):
    """Where people sign in with OpenID Connect."""

    issuer: str
    client_id: str
    scopes: tuple[str, ...]
    audience: str
    prompt: str = ""
    token: Literal["id_token", "access_token"] = Field(
        description="Which of the issuer's tokens to send as `Authorization: Bearer`."
    )


class SignInOffer(Answer):
    oidc: Issuer | None = Field(description="null: only keys are accepted.")

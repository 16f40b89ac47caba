"""API keys: how they are created and changed, and how the API describes them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from gateway.schemas.base import Address, Answer, StrictBody
from gateway.schemas.options import Option
from gateway.tenants.schemas.terms import KeyTerms
from gateway.tenants.terms import Budget, Limits, Priority, Scopes

KeyRole = Literal[
    "tenant", "tenant-admin", "operator", "finance", "auditor", "engine", "metrics", "controller"
]
_WHEN = "When it expires: 90d, 24h, or a date such as 2027-06-30 (its start, UTC)."
Moment = Annotated[str, Field(max_length=64, examples=["90d"])]

_ROLES = {
    "tenant": "tenant: calls models",
    "tenant-admin": "tenant-admin: also manages its tenant's adapters and keys",
    "operator": "operator: everything",
    "finance": "finance: prices, costs, months",
    "auditor": "auditor: reads costs, months and the audit log",
    "engine": "engine: one GPU host",
    "metrics": "metrics: reads /metrics",
    "controller": "controller: applies tenants and adapters from Kubernetes resources",
}


class KeyFields(KeyTerms):
    expires: Annotated[Moment | None, Option(clears=True, metavar="WHEN", unset="never", help=_WHEN)] = Field(
        None,
        description="When it expires: a duration such as `90d`, or an ISO 8601 date or time, UTC; null: "
        "never.",
    )


class NewKey(KeyFields):
    tenant: Annotated[str, Option()] = Field(
        "",
        description="Tenant that owns the key; required for its two roles. Default: the caller's own, if it "
        "has one.",
        examples=["acme"],
    )
    role: Annotated[KeyRole, Option(choices=_ROLES)] = Field(
        "tenant",
        description="Role of the key. tenant-admin: also manages its tenant's adapters and keys; engine: for "
        "one GPU host; metrics: reads /metrics. Enrolment tokens have their own route.",
    )
    engine: Annotated[str, Option()] = Field(
        "", description="Engine that the key is for; required for role engine.", examples=["a1"]
    )
    address: Annotated[Address | None, Option()] = Field(
        None,
        description="For role engine: pinned host name or IP address in the engine's URLs. Left out: the "
        "address that its host connects from.",
        examples=["a1.engines.internal"],
    )


class Rotation(StrictBody):
    overlap: Annotated[Moment, Option("How long this one stays valid", metavar="TIME")] = Field(
        "24h", description="How long the old key stays valid: 0s, 30m, 24h, 7d; at most 30d."
    )
    expires: Annotated[Moment | None, Option(metavar="WHEN")] = Field(
        None,
        description="When the new key expires: `90d`, or a date. Omitted: it is valid for as long as the old "
        "one was.",
    )


class EnginePins(Answer):
    """Facts about an engine that its host cannot change. Only those that are pinned are there."""

    base: str | None = None
    gpu_type: str | None = None
    gpu_count: int | None = None
    region: str | None = None
    purchase: str | None = None
    address: str | None = None
    labels: dict[str, str] | None = None
    tenant: str | None = Field(None, description="The tenant to which it is dedicated; empty: none.")


class Key(Answer):
    """Times are Unix microseconds, UTC."""

    id: str
    label: str
    role: Literal[KeyRole, "enrolment"]
    tenant: str = Field(description="Empty for a key that belongs to no tenant.")
    created: int
    expires: int | None = Field(description="null: never.")
    revoked: int | None
    replaced_by: str = Field(description="The key to which it was rotated; empty: to none.")
    scopes: Scopes
    limits: Limits
    budget: Budget
    priority: Priority
    cost_centre: str
    engine: str = Field("", description="The engine of a key of role engine. A tenant's keys have none.")
    pins: EnginePins | None = Field(None, description="What that engine's host cannot change.")
    last_used: int | None = Field(
        None, description="Uses of the last ten seconds or so may be missing; null: not known."
    )


class CreatedKey(Key):
    key: str = Field(description="The key itself. Only this response contains it.")


class RotatedKey(CreatedKey):
    replaced: Key = Field(description="The old key, which expires after the overlap.")

"""The audit log, and the attempts of one request."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from gateway.schemas.base import Answer
from gateway.tenants.schemas.tenants import RequestError


class ActorKey(Answer):
    tenant: str
    role: str
    revoked: bool


class AuditEntry(Answer):
    id: str
    recorded_at: str = Field(description="ISO 8601, UTC.")
    actor: str = Field(examples=["key:3f9c2a"])
    actor_key: ActorKey | None = Field(
        description="null: the actor is no key, or the registry does not know it."
    )
    action: str = Field(examples=["adapter.promote"])
    subject: str
    version: str
    details: dict[str, Any]


class AuditPage(Answer):
    data: tuple[AuditEntry, ...]
    next: str | None = Field(description="The cursor of the next page; null: this is the last.")
    complete: bool = Field(
        description="false while Redis is unavailable: the entries of the last seconds may be missing."
    )


class Attempt(Answer):
    """One attempt to answer a request on an engine. Times are ISO 8601, UTC."""

    attempt: int
    tenant: str
    key_id: str
    key_role: str | None = Field(description="null: the registry does not know the key any more.")
    adapter: str = Field(description="Empty for the base model, as `version`.")
    version: str
    base_model: str
    engine: str
    gpu_type: str
    gpu_count: int
    dispatched: str
    first_token: str | None
    ended: str | None
    prompt_tokens: int
    cached_tokens: int | None = Field(
        description="Part of the prompt tokens; null: the engine did not report it."
    )
    completion_tokens: int
    reasoning_tokens: int = Field(description="Part of the completion tokens.")
    n: int
    usage_source: str
    outcome: str
    billable: bool = Field(description="true for the delivered attempt; others are retry waste.")
    loads: int = Field(description="Adapter loads caused by this attempt.")
    end_user: str | None = None
    tag: str | None = None
    cost_centre: str | None = None
    service_tier: str = Field("", description="`batch`: a line of a batch; empty: any other request.")
    task: str = Field("", description="`embed` or `score`; empty: the request generated text.")


class TenantError(RequestError):
    tenant: str


class RequestAttempts(Answer):
    request_id: str
    attempts: tuple[Attempt, ...]
    complete: bool = Field(
        description="false while records are still arriving in the ledger, which takes a second or two."
    )
    error: TenantError | None = Field(
        None, description="What the request ended with, if it is among the last errors of its tenant."
    )

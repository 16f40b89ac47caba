"""What limits would have done with the requests of the last days."""

from __future__ import annotations

from pydantic import Field

from gateway.schemas.base import Answer, StrictBody
from gateway.tenants.schemas.terms import Rules

MOST_DAYS = 31


class LimitsToTry(StrictBody):
    rules: Rules = Field(
        (),
        description="As in `limits.rules` of a tenant, but not by session. Empty: the tenant's own limits "
        "and budgets.",
        examples=[["user:tokens/5h=200k"]],
    )
    days: int = Field(7, ge=1, le=MOST_DAYS, strict=True, description="How far back, until now.")


class Refused(Answer):
    name: str = Field(description="A key's id, adapter, end user or tag; empty: all requests together.")
    would_refuse: int


class DryRunLimit(Answer):
    limit: str = Field(description="As text.")
    requests: int = Field(description="Those that it counts.")
    would_refuse: int = Field(description="Of these. A refused request uses nothing of the limit.")
    consumers: int = Field(description="Keys, adapters, end users or tags that have it to themselves.")
    consumers_refused: int
    most_refused: tuple[Refused, ...] = Field(description="At most five, most often refused first.")
    until: int = Field(
        description="Unix microseconds, UTC. Before `end` if there were too many records for one answer: "
        "then all figures are those until here."
    )


class LimitDryRun(Answer):
    tenant: str
    start: int = Field(description="Unix microseconds, UTC.")
    end: int = Field(description="Unix microseconds, UTC.")
    limits: tuple[DryRunLimit, ...]

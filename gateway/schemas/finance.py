"""What the answers of the finance API have in common."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gateway.schemas.base import Answer

Money = Annotated[str, Field(description="In the report's currency: an exact decimal.", examples=["12.50"])]
Hours = Annotated[str, Field(description="An exact decimal.", examples=["744.00"])]
Start = Annotated[str, Field(alias="from", description="ISO 8601, UTC; inclusive.")]
End = Annotated[str, Field(description="ISO 8601, UTC; exclusive.")]


class Complete(Answer):
    """How far a report's figures go."""

    complete: bool = Field(description="false: records are still arriving in the ledger.")
    missing: str | None = Field(None, description="Left out unless records of other gateways are missing.")


class UsageRecord(Answer):
    """One attempt of a request. Times are Unix microseconds, UTC."""

    id: str
    request_id: str
    attempt: int
    tenant: str
    key_id: str
    adapter: str = Field(description="Empty: the base model.")
    version: str
    base_model: str
    engine: str | None = Field(None, description="For staff.")
    gpu_type: str
    gpu_count: int | None = Field(None, description="For staff.")
    dispatched: int
    first_token: int | None
    ended: int
    prompt_tokens: int
    cached_tokens: int | None = Field(description="null: the engine did not say.")
    completion_tokens: int
    reasoning_tokens: int
    n: int
    usage_source: str = Field(
        description="Where the counts come from: `engine_final`, `engine_partial`, `estimated` or `none`."
    )
    outcome: str
    billable: bool
    adapter_loads: int
    hour_marks: str | None
    end_user: str | None = None
    tag: str | None = None
    cost_centre: str | None = None
    service_tier: str | None = None


class PriceSeries(Answer):
    """What has no price."""

    gpu_type: str
    region: str
    purchase: str
    gpu_hours: Hours | None = None

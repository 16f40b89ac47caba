"""What the answers of the finance API have in common."""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, Field, WithJsonSchema

from gateway.schemas.base import Answer

Money = Annotated[str, Field(description="In the report's currency: an exact decimal.", examples=["12.50"])]
Hours = Annotated[str, Field(description="An exact decimal.", examples=["744.00"])]
Start = Annotated[str, Field(alias="from", description="ISO 8601, UTC; inclusive.")]
End = Annotated[str, Field(description="ISO 8601, UTC; exclusive.")]


def _is_currency(text: str) -> str:
    if not re.fullmatch("[A-Z]{3}", text):
        raise ValueError(f"{text[:40]!r} is not a currency code: three capital letters, like USD")
    return text


Currency = Annotated[
    str, AfterValidator(_is_currency), WithJsonSchema({"type": "string", "pattern": "^[A-Z]{3}$"})
]


Lack = Literal[
    "records_unshipped",
    "hours_stale",
    "ledgers_differ",
    "hours_set_aside",
    "records_quarantined",
    "prices_missing",
]
LACKS: Final[dict[Lack, str]] = {
    "records_unshipped": "Records of this gateway are still arriving in the ledger. Try again shortly.",
    "hours_stale": "Some engine-hours are not summed up yet. Try again shortly.",
    "ledgers_differ": "Other gateways write to another ledger, and their usage is not included.",
    "hours_set_aside": "Some engine-hours cannot be computed and are left out; see florin cost set-aside.",
    "records_quarantined": "Records in quarantine are left out; see florin cost quarantine.",
    "prices_missing": "Some GPU time has no price: sums that include it are left out.",
}


class IncompleteReason(Answer):
    code: Lack
    message: str

    @classmethod
    def about(cls, code: Lack) -> Self:
        return cls(code=code, message=LACKS[code])


class Complete(Answer):
    """How far a report's figures go."""

    complete: bool = Field(description="false: the figures are those so far; `reasons` says what they lack.")
    reasons: tuple[IncompleteReason, ...] = Field((), description="What the figures lack.")
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
    task: str = Field("", description="`embed` or `score`; empty: the request generated text.")


class PriceSeries(Answer):
    """What has no price."""

    gpu_type: str
    region: str
    purchase: str
    gpu_hours: Hours | None = None

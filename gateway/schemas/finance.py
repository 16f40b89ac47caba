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


class PriceSeries(Answer):
    """What has no price."""

    gpu_type: str
    region: str
    purchase: str
    gpu_hours: Hours | None = None

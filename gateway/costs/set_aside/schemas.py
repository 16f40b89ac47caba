"""Engine-hours that cannot be rolled up, and records that the ledger could not accept."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from gateway.schemas.base import Answer, StrictBody


class ExcludedHour(StrictBody):
    """The engine-hour whose records are excluded."""

    engine: str = Field(max_length=200, examples=["gpu-a"])
    hour: str = Field(max_length=40, description="As listed.", examples=["2026-11-03T14:00:00Z"])
    everything: bool = Field(False, description="Exclude all records of the hour, not only implausible ones.")


class HourSetAside(Answer):
    hour: str
    engine: str
    gpu_type: str
    gpu_count: int
    since: str
    reason: str


class Exclusion(Answer):
    """What an exclusion did."""

    engine: str
    hour: str
    quarantined: int = Field(description="Records.")
    kept: int = Field(description="Records that a closed month covers.")
    set_aside: bool = Field(description="The hour still is.")


class QuarantinedRecord(Answer):
    id: str
    reason: Literal["differs", "pruned", "excluded"] = Field(
        description="`differs`: the ledger has this id with other content; `pruned`: it arrived after the "
        "records of its time were deleted; `excluded`: by an operator."
    )
    recorded_at: str
    record: dict[str, Any] = Field(description="As it arrived.")
    stored: dict[str, Any] | None = Field(description="The ledger's values of the fields that differ.")


class Quarantine(Answer):
    data: tuple[QuarantinedRecord, ...]
    total: int
    next: str | None = Field(description="For `after`; null on the last page.")

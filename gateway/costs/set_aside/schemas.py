"""Engine-hours that cannot be rolled up, and records that the ledger could not accept."""

from __future__ import annotations

from typing import Annotated, Any, Literal

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


class DismissedRecords(StrictBody):
    """Records in quarantine that rightly are in no report and no bill, and why."""

    records: list[Annotated[str, Field(max_length=36)]] = Field(
        min_length=1, max_length=1000, description="Ids, as listed."
    )
    reason: str = Field(min_length=3, max_length=500, description="Why; kept in the audit log.")


class Dismissed(Answer):
    """What a dismissal did."""

    dismissed: tuple[str, ...] = Field(description="Ids of records that were not dismissed before.")
    reason: str


class Dismissal(Answer):
    by: str = Field(description="Id of the key.")
    recorded_at: str
    reason: str


class QuarantinedRecord(Answer):
    id: str
    reason: Literal["differs", "pruned", "excluded"] = Field(
        description="`differs`: the ledger has this id with other content; `pruned`: it arrived after the "
        "records of its time were deleted; `excluded`: by an operator."
    )
    recorded_at: str
    record: dict[str, Any] = Field(description="As it arrived.")
    stored: dict[str, Any] | None = Field(description="The ledger's values of the fields that differ.")
    dismissal: Dismissal | None = Field(
        None,
        description="Who decided that it rightly is in no bill, so that its month can be reconciled.",
    )


class Quarantine(Answer):
    data: tuple[QuarantinedRecord, ...]
    total: int
    next: str | None = Field(description="For `after`; null on the last page.")

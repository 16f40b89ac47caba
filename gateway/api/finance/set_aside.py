"""Engine-hours that cannot be rolled up, and their exclusion."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from pydantic import Field

from gateway.api.dependencies import StaffKey, StateDep
from gateway.api.finance.common import Tagged
from gateway.costs.periods import PeriodError, instant
from gateway.errors import FlorinError
from gateway.operations import set_aside
from gateway.operations.authorization import actor_of
from gateway.schemas.base import StrictBody

router = APIRouter(prefix="/set-aside", route_class=Tagged)


class ExcludedHour(StrictBody):
    """The engine-hour whose records are excluded."""

    engine: str = Field(max_length=200, examples=["gpu-a"])
    hour: str = Field(max_length=40, description="As listed.", examples=["2026-11-03T14:00:00Z"])
    everything: bool = Field(False, description="Exclude all records of the hour, not only implausible ones.")


@router.get("")
async def show(_: StaffKey, state: StateDep) -> dict[str, Any]:
    """Engine-hours that cannot be rolled up, oldest first, each with its reason. They are in no report, no
    export and no bill, and their month cannot be closed. Role finance or operator."""
    return {"data": await set_aside.entries(state)}


@router.post("/exclude")
async def exclude_records(asked: ExcludedHour, key: StaffKey, state: StateDep) -> dict[str, Any]:
    """Quarantine the implausible records of an hour and roll up the rest; without such records, only try
    again. Records that a closed month covers stay (`kept`), and so do that month's figures. `set_aside` says
    whether the hour is still set aside."""
    done = await set_aside.exclude_records(
        state, asked.engine, _hour(asked.hour), everything=asked.everything, actor=actor_of(key)
    )
    return {"engine": asked.engine, "hour": asked.hour, **done}


def _hour(text: str) -> int:
    digits = text.removeprefix("-")
    if digits.isascii() and digits.isdigit() and len(digits) < 19:
        return int(text)  # as listed if it is out of the range of ISO 8601
    try:
        return instant("hour", text)
    except PeriodError as error:
        raise FlorinError("invalid_value", str(error), param="hour") from error

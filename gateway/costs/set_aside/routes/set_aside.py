"""Engine-hours that cannot be rolled up, and their exclusion."""

from __future__ import annotations

from fastapi import APIRouter

from gateway.api.dependencies import StaffKey, StateDep
from gateway.api.finance_requests import Tagged
from gateway.costs.periods import instant
from gateway.costs.set_aside import operations as set_aside
from gateway.costs.set_aside.schemas import ExcludedHour, Exclusion, HourSetAside
from gateway.operations.authorization import actor_of
from gateway.schemas.base import Listed

router = APIRouter(prefix="/set-aside", route_class=Tagged)


@router.get("")
async def show(_: StaffKey, state: StateDep) -> Listed[HourSetAside]:
    """Engine-hours that cannot be rolled up, oldest first, each with its reason. They are in no report, no
    export and no bill, and their month cannot be closed. Role finance or operator."""
    return Listed[HourSetAside].read({"data": await set_aside.entries(state)})


@router.post("/exclude")
async def exclude_records(body: ExcludedHour, key: StaffKey, state: StateDep) -> Exclusion:
    """Quarantine the implausible records of an hour and roll up the rest; without such records, only try
    again. Records that a closed month covers stay, and so do that month's figures."""
    done = await set_aside.exclude_records(
        state, body.engine, _hour(body.hour), everything=body.everything, actor=actor_of(key)
    )
    return Exclusion.read({"engine": body.engine, "hour": body.hour, **done})


def _hour(text: str) -> int:
    digits = text.removeprefix("-")
    if digits.isascii() and digits.isdigit() and len(digits) < 19:
        return int(text)  # as listed if it is out of the range of ISO 8601
    return instant("hour", text)

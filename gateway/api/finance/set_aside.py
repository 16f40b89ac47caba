"""Engine-hours that cannot be rolled up, and their exclusion."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from gateway.api.dependencies import FinanceKey, StateDep
from gateway.api.finance.common import Tagged, only_staff
from gateway.costs.periods import PeriodError, instant
from gateway.costs.rollups.rollup import roll
from gateway.costs.rollups.set_aside import NotSetAsideError, exclude, list_set_aside
from gateway.errors import FlorinError
from gateway.operations.authorization import actor_of

router = APIRouter(prefix="/set-aside", route_class=Tagged)

_ROLL_SECONDS = 10.0


class Hour(BaseModel):
    """Which engine-hour is meant."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    engine: str = Field(max_length=200, examples=["gpu-a"])
    hour: str = Field(max_length=40, description="As listed.", examples=["2026-11-03T14:00:00Z"])
    everything: bool = Field(False, description="Exclude all records of the hour, not only implausible ones.")


@router.get("")
async def show(key: FinanceKey, state: StateDep) -> dict[str, Any]:
    """Engine-hours that cannot be rolled up, oldest first, each with its reason. They are in no report, no
    export and no bill, and their month cannot be closed. Role finance or operator."""
    only_staff(key)
    await state.ledger_process.run(roll, state.clock.now(), patience=_ROLL_SECONDS)
    return {"data": await state.ledger_process.run(list_set_aside)}


@router.post("/exclude")
async def exclude_records(asked: Hour, key: FinanceKey, state: StateDep) -> dict[str, Any]:
    """Quarantine the implausible records of an hour and roll up the rest; without such records,
    only try again. Records that a closed month covers stay (`kept`), and so do that month's figures.
    `set_aside` says whether the hour still is."""
    only_staff(key)
    now = state.clock.now()
    hour = _hour(asked.hour)
    try:
        done = await state.ledger_process.run(
            exclude, engine=asked.engine, hour=hour, everything=asked.everything, actor=actor_of(key), now=now
        )
    except NotSetAsideError as error:
        raise FlorinError("not_found", str(error), param="hour") from error
    await state.ledger_process.run(roll, now, patience=_ROLL_SECONDS)
    left = await state.ledger_process.run(list_set_aside)
    return {
        "engine": asked.engine,
        "hour": asked.hour,
        "quarantined": done.quarantined,
        "kept": done.kept,
        "set_aside": any((one["engine"], one["hour"]) == (asked.engine, asked.hour) for one in left),
    }


def _hour(text: str) -> int:
    digits = text.removeprefix("-")
    if digits.isascii() and digits.isdigit() and len(digits) < 19:
        return int(text)  # as an hour is listed that is no time
    try:
        return instant("hour", text)
    except PeriodError as error:
        raise FlorinError("invalid_value", str(error), param="hour") from error

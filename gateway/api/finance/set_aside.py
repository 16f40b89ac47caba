"""Engine-hours that cannot be rolled up, and how to resolve them."""

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
    """The engine-hour to resolve."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    engine: str = Field(max_length=200, examples=["gpu-a"])
    hour: str = Field(max_length=40, description="As listed.", examples=["2026-11-03T14:00:00Z"])
    everything: bool = Field(False, description="Quarantine all records of the hour, not only invalid ones.")


@router.get("")
async def show(key: FinanceKey, state: StateDep) -> dict[str, Any]:
    """List engine-hours that cannot be rolled up, oldest first, with the reasons. They are excluded from
    reports, exports and bills, and their month cannot be closed. Requires role finance or operator."""
    only_staff(key)
    await state.ledger_process.run(roll, state.clock.now(), patience=_ROLL_SECONDS)
    return {"data": await state.ledger_process.run(list_set_aside)}


@router.post("/exclude")
async def exclude_records(asked: Hour, key: FinanceKey, state: StateDep) -> dict[str, Any]:
    """Quarantine the invalid records of an hour and roll up the rest; without invalid records, just try
    again. Records of a closed month stay (`sealed`), and its figures do not change. `set_aside` says
    whether the hour still cannot be rolled up."""
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
        "sealed": done.sealed,
        "set_aside": any((one["engine"], one["hour"]) == (asked.engine, asked.hour) for one in left),
    }


def _hour(text: str) -> int:
    digits = text.removeprefix("-")
    if digits.isascii() and digits.isdigit() and len(digits) < 19:
        return int(text)  # hours outside the calendar are listed as numbers
    try:
        return instant("hour", text)
    except PeriodError as error:
        raise FlorinError("invalid_value", str(error), param="hour") from error

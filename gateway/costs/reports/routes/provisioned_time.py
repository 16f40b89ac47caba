"""When engines were provisioned."""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import APIRouter, Query

from gateway.api.dependencies import StaffKey, StateDep
from gateway.api.finance_requests import (
    After,
    RequestedPeriod,
    Tagged,
    position,
    token,
)
from gateway.costs.cost_lines import effective
from gateway.costs.periods import iso
from gateway.costs.reports.provisioned_time import hours_page, sightings_page
from gateway.costs.reports.schemas.provisioned_time import EngineHours, Sightings
from gateway.costs.rollups.attribution import BRIDGED
from gateway.errors import FlorinError
from gateway.operations.ledger_refresh import completeness, lacking

router = APIRouter(prefix="/provisioned-time", route_class=Tagged)

EngineName = Annotated[str | None, Query(max_length=200, description="Only this engine.")]
Limit = Annotated[int, Query(ge=1, le=10_000)]
_NUMBER = re.compile(r"-?\d{1,18}", re.ASCII)


@router.get("")
async def sightings(
    *,
    _: StaffKey,
    state: StateDep,
    period: RequestedPeriod,
    engine: EngineName = None,
    limit: Limit = 1000,
    after: After = None,
) -> Sightings:
    """When each worker saw each engine alive. With the records (`usage`) and the prices, this is all that a
    cost report is computed from. The union of an engine's sightings is its provisioned time. Sightings
    that touch the period are listed whole. Role finance or operator."""
    within = effective(period)
    start_after = None
    if after is not None:
        name, worker, began, phase = position(after, 4)
        start_after = (name, worker, _number(began), phase)
    page, last = await state.ledger_process.run(
        sightings_page, within, engine=engine, after=start_after, limit=limit
    )
    return Sightings.read(
        {
            "data": page,
            "from": iso(within.start),
            "to": iso(within.end),
            "bridged_us": BRIDGED,
            "next": None if last is None else token([str(part) for part in last]),
        }
    )


@router.get("/hours", response_model_exclude_unset=True)
async def hours(
    *,
    _: StaffKey,
    state: StateDep,
    period: RequestedPeriod,
    engine: EngineName = None,
    limit: Limit = 1000,
    after: After = None,
) -> EngineHours:
    """Engine-hours, and the weights that divided them. Role finance or operator."""
    now = state.clock.now()
    within = effective(period)
    start_after = None
    if after is not None:
        hour, name, gpu_type, count = position(after, 4)
        start_after = (_number(hour), name, gpu_type, _number(count))
    flushed = await state.meter.flush()
    page, last, complete = await state.ledger_process.run(
        hours_page, within, engine=engine, after=start_after, limit=limit, now=now
    )
    lacks = await lacking(state.ledger_process, within, flushed=flushed, rolled=complete)
    return EngineHours.read(
        {
            **page,
            "from": iso(within.start),
            "to": iso(within.end),
            "next": None if last is None else token([str(part) for part in last]),
            **completeness(state, lacks),
        }
    )


def _number(text: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise FlorinError("invalid_value", "after: use `next` of the previous page unchanged.", param="after")
    return int(text)

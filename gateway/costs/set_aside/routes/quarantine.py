"""Records that the ledger could not accept."""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import APIRouter, Query

from gateway.api.dependencies import StaffKey, StateDep
from gateway.api.finance_requests import After, Tagged, position, token
from gateway.costs.periods import iso
from gateway.costs.set_aside.schemas import Quarantine, QuarantinedRecord
from gateway.errors import FlorinError
from gateway.metering.ledger.quarantine import Position, quarantine_page

router = APIRouter(prefix="/quarantine", route_class=Tagged)

_TIME = re.compile(r"\d{1,18}", re.ASCII)


@router.get("")
async def quarantine(
    *,
    _: StaffKey,
    state: StateDep,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    after: After = None,
) -> Quarantine:
    """Records in quarantine, newest first: they are in no report, no statement and no bill.
    Role finance or operator."""
    await state.meter.flush()
    quarantined, last, total = await state.ledger_process.run(
        quarantine_page, limit, None if after is None else _position(after)
    )
    return Quarantine(
        data=tuple(QuarantinedRecord.of(q, recorded_at=iso(q.recorded_at)) for q in quarantined),
        total=total,
        next=None if last is None else token([str(part) for part in last]),
    )


def _position(after: str) -> Position:
    moment, record_id, digest = position(after, 3)
    if not _TIME.fullmatch(moment):
        raise FlorinError("invalid_value", "after: use `next` of the previous page unchanged.", param="after")
    return int(moment), record_id, digest

"""Records that the ledger could not accept."""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import APIRouter, Query

from gateway.api.dependencies import StaffKey, StateDep
from gateway.api.finance_requests import After, Tagged, position, token
from gateway.costs.periods import iso
from gateway.costs.set_aside.schemas import (
    Dismissal,
    Dismissed,
    DismissedRecords,
    Quarantine,
    QuarantinedRecord,
)
from gateway.errors import FlorinError
from gateway.metering.ledger.quarantine import NotQuarantinedError, Position, dismiss, quarantine_page
from gateway.operations.authorization import actor_of

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
        data=tuple(
            QuarantinedRecord.of(
                entry,
                recorded_at=iso(entry.recorded_at),
                dismissal=entry.dismissal
                and Dismissal.of(entry.dismissal, recorded_at=iso(entry.dismissal.recorded_at)),
            )
            for entry in quarantined
        ),
        total=total,
        next=None if last is None else token([str(part) for part in last]),
    )


@router.post("/dismiss")
async def dismiss_records(body: DismissedRecords, key: StaffKey, state: StateDep) -> Dismissed:
    """Decide that records in quarantine rightly are in no report and no bill. They stay listed, and no longer
    keep their month from being reconciled. Dismissing a record again changes nothing."""
    await state.meter.flush()
    try:
        dismissed = await state.ledger_process.run(
            dismiss,
            body.records,
            reason=body.reason,
            now=state.clock.now(),
            by=key.id,
            actor=actor_of(key),
        )
    except NotQuarantinedError as error:
        raise FlorinError("not_found", str(error), param="records") from error
    return Dismissed(dismissed=tuple(dismissed), reason=body.reason)


def _position(after: str) -> Position:
    moment, record_id, digest = position(after, 3)
    if not _TIME.fullmatch(moment):
        raise FlorinError("invalid_value", "after: use `next` of the previous page unchanged.", param="after")
    return int(moment), record_id, digest

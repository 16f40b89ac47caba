"""Usage and cost as events."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query

from gateway.api.dependencies import StaffKey, StateDep
from gateway.api.finance_requests import After, Tagged, position, token
from gateway.costs.events.event_pages import NotClosedError, charge_events, cost_events, usage_events
from gateway.costs.events.schemas import CloudEvents
from gateway.costs.periods import instant
from gateway.errors import FlorinError

router = APIRouter(route_class=Tagged)


@router.get("/events")
async def events(
    *,
    _: StaffKey,
    state: StateDep,
    kind: Annotated[
        Literal["usage", "cost", "charge"],
        Query(
            description="`usage`: one for each billable attempt; `cost`: what a closed month cost, by tenant "
            "and adapter; `charge`: what tenants are charged for it, by line of their statements."
        ),
    ] = "usage",
    month: Annotated[
        str | None, Query(max_length=10, description="Of `cost`, `charge`: the closed month.")
    ] = None,
    since: Annotated[
        str | None, Query(max_length=40, description="Of `usage`: leave out what ended earlier, ISO 8601.")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=10_000, description="Records to look at.")] = 1000,
    after: After = None,
) -> CloudEvents:
    """CloudEvents 1.0 that billing systems can take more than once: ids never change. Usage comes in the
    order in which it reached the ledger, so a late record is never passed over: keep `next` as a cursor and
    ask again later. `more` is false at the present end."""
    source = f"florin/{state.settings.redis_prefix}"
    try:
        if kind != "usage":
            if month is None:
                raise FlorinError("invalid_value", f"month: required for events of {kind}.", param="month")
            make = cost_events if kind == "cost" else charge_events
            data = await state.ledger_process.run(make, month, source=source)
            return CloudEvents(data=data, next=None, more=False)
        begin = 0 if since is None else instant("since", since)
    except NotClosedError as error:
        raise FlorinError("invalid_value", str(error), param="month") from error
    await state.meter.flush()
    data, last, more = await state.ledger_process.run(
        usage_events, source=source, after=_position(after), since=begin, limit=limit
    )
    cursor = None if last is None else token((str(last[0]), last[1]))
    return CloudEvents(data=data, next=cursor, more=more)


def _position(after: str | None) -> tuple[int, str] | None:
    if after is None:
        return None
    batch, record_id = position(after, 2)
    if not (batch.isascii() and batch.isdigit() and len(batch) < 19):
        raise FlorinError("invalid_value", "after: use `next` of the previous page unchanged.", param="after")
    return int(batch), record_id

"""Usage records."""

from __future__ import annotations

import asyncio
import re
from functools import partial
from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query, Response

from gateway.api.dependencies import FinanceKey, StateDep
from gateway.api.finance_requests import (
    After,
    RequestedPeriod,
    Tagged,
    Tenant,
    known_tenants_of,
    ledger_process_of,
    owner_of,
    position,
    rendered,
    token,
)
from gateway.costs.periods import iso
from gateway.costs.reports.request_cost import request_cost
from gateway.costs.reports.schemas.usage import RequestCost, RequestUsage, UsagePage
from gateway.costs.reports.usage_page import request_page, usage_page
from gateway.errors import FlorinError
from gateway.metering.records import Outcome
from gateway.operations.ledger_refresh import completeness, lacking
from gateway.operations.state import State
from gateway.schemas.finance import Lack
from gateway.tenants.directory import Key

_TIME = re.compile(r"-?\d{1,18}", re.ASCII)
_ID = re.compile(r"[0-9a-f-]{36}")

router = APIRouter(route_class=Tagged)


@router.get("/usage", response_model=UsagePage)
async def usage(
    *,
    key: FinanceKey,
    state: StateDep,
    period: RequestedPeriod,
    tenant: Tenant = None,
    adapter: Annotated[
        str | None, Query(max_length=200, description="Only this adapter's, by its full name.")
    ] = None,
    outcome: Annotated[
        list[Outcome] | None, Query(max_length=len(Outcome), description="Only these. Repeatable.")
    ] = None,
    order: Annotated[Literal["oldest", "newest"], Query(description="Which records come first.")] = "oldest",
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    after: After = None,
) -> Response:
    """List usage records by the time at which they ended. `next` is null on the last page.
    `complete` is false while records are still arriving in the ledger. A tenant's key sees the requests that
    began after its tenant was added."""
    flushed = await state.meter.flush()
    [*tenants] = set(await known_tenants_of(state, key, tenant))
    position = None if after is None else position_of(after)
    make_page = partial(
        usage_page,
        start=period.start,
        end=period.end,
        tenant=tenants[0] if tenants else None,
        after=position,
        limit=limit,
        adapter=adapter,
        outcomes=None if outcome is None else frozenset(outcome),
        newest_first=order == "newest",
        owner=owner_of(state, key),
    )
    if key.own_tenant is not None:
        page, last = await state.ledger_process.for_tenants().run(make_page)
    else:
        page, last = await asyncio.to_thread(make_page, state.ledger)
    process = ledger_process_of(state, key)
    lacks = await lacking(process, period, flushed=flushed, tenant=key.own_tenant)
    return rendered(
        page,
        **{"from": iso(period.start), "to": iso(period.end)},
        next=None if last is None else token_of(*last),
        **completeness(state, lacks),
    )


@router.get("/usage/{request_id}", response_model=RequestUsage)
async def request_usage(
    *,
    request_id: Annotated[str, Path(max_length=200, description="`x-request-id` of the response.")],
    key: FinanceKey,
    state: StateDep,
) -> Response:
    """The usage records of one request: one for each attempt, in order. A tenant's key hears of others'
    requests what it hears of those that never were. `complete` is false while records are still arriving in
    the ledger, which takes a second or two."""
    flushed = await state.meter.flush()
    owner = owner_of(state, key)
    make_page = partial(request_page, request_id=request_id, owner=owner)
    if owner is not None:
        page, count = await state.ledger_process.for_tenants().run(make_page)
    else:
        page, count = await asyncio.to_thread(make_page, state.ledger)
    if not count:
        raise FlorinError("not_found", unknown_request(request_id))
    lacks = await _lacking(state, key, request_id, flushed=flushed)
    return rendered(page, request_id=request_id, **completeness(state, lacks))


@router.get("/usage/{request_id}/cost", response_model_exclude_unset=True)
async def cost_of_request(
    *,
    request_id: Annotated[str, Path(max_length=200, description="`x-request-id` of the response.")],
    key: FinanceKey,
    state: StateDep,
) -> RequestCost:
    """What one request cost: its shares of the engine-hours in which it ran, exactly as they are in the cost
    report. A tenant's key hears of its own requests, without GPU time."""
    flushed = await state.meter.flush()
    process = ledger_process_of(state, key)
    cost = await process.run(request_cost, request_id, owner=owner_of(state, key), now=state.clock.now())
    if cost is None:
        raise FlorinError("not_found", unknown_request(request_id))
    lacks = await _lacking(state, key, request_id, flushed=flushed)
    return RequestCost.read(cost | completeness(state, lacks))


async def _lacking(state: State, key: Key, request_id: str, *, flushed: bool) -> tuple[Lack, ...]:
    process = ledger_process_of(state, key)
    return await lacking(process, None, flushed=flushed, tenant=key.own_tenant, request_id=request_id)


def unknown_request(request_id: str) -> str:
    return (
        f"The ledger has no attempt of request {request_id[:100]!r}. Records arrive a second or two "
        "after the response; requests that were refused before they reached an engine have none."
    )


def token_of(ended: int, record_id: str) -> str:
    return token((str(ended), record_id))


def position_of(after: str) -> tuple[int, str]:
    ended, record_id = position(after, 2)
    if not (_TIME.fullmatch(ended) and _ID.fullmatch(record_id)):
        raise FlorinError("invalid_value", "after: use `next` of the previous page unchanged.", param="after")
    return int(ended), record_id

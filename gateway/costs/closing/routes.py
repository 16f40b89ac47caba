"""Months: closing, verification and proofs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Response
from fastapi.responses import StreamingResponse

from gateway.api.dependencies import FinanceKey, StaffKey, StateDep
from gateway.api.finance_requests import (
    After,
    Tagged,
    is_own_month,
    ledger_process_of,
    month_of,
    names_reused_in,
    owner_of,
    rendered,
)
from gateway.costs.closing import operations as closing
from gateway.costs.closing.schemas import ClosingPreview, ClosingTerms, Month, Proof, Records, Verification
from gateway.costs.periods import month_of as whole_month
from gateway.costs.reports.closed_months import covered_page, no_statement, one, overview, proof_of, verified
from gateway.costs.reports.routes.usage import position_of, token_of
from gateway.costs.verification.verify import NotClosedError
from gateway.errors import FlorinError
from gateway.metering.ledger.database import LedgerUnavailableError
from gateway.schemas.base import Listed

router = APIRouter(prefix="/periods", route_class=Tagged)

MonthName = Annotated[str, Path(description="`2026-11`")]
Tenant = Annotated[str | None, Query(description="The tenant; a tenant's key sees only its own.")]


@router.get("", response_model_exclude_unset=True)
async def periods(key: FinanceKey, state: StateDep) -> Listed[Month]:
    """List the months with usage, oldest first. A tenant's key sees those since its tenant was added."""
    await state.meter.flush()
    shown = await ledger_process_of(state, key).run(overview, state.clock.now(), key.own_tenant)
    if (owner := owner_of(state, key)) is not None:
        shown = [period for period in shown if whole_month(period["month"]).end > owner.since]
    return Listed(data=tuple(map(Month.read, shown)))


@router.get("/{month}", response_model_exclude_unset=True)
async def period(month: MonthName, key: FinanceKey, state: StateDep) -> Month:
    """One month, with its statements if it is closed. A tenant's key does not see that of a month that covers
    an earlier tenant of the same name, too."""
    shown = await ledger_process_of(state, key).run(one, month_of(month), state.clock.now(), key.own_tenant)
    if key.own_tenant is None:
        reused = await names_reused_in(state, whole_month(month))
        for statement in shown["statements"]:
            if statement["tenant"] in reused:
                statement["name_reused_at"] = reused[statement["tenant"]]
    elif not await is_own_month(state, key, month):
        shown["statements"] = []
    return Month.model_validate(shown)


@router.post(
    "/{month}/close", response_model_exclude_unset=True, responses={202: {"description": "Not done yet."}}
)
async def close_period(
    month: MonthName, terms: ClosingTerms, key: StaffKey, state: StateDep, response: Response
) -> Month:
    """Close a month: its figures never change afterwards; later changes become correction rows of the next
    open month. 202 while it is still running: repeat the request with the same body until it is 200 (`GET`
    shows the progress). With FLORIN_TWO_PERSON_APPROVAL, the first person gets 202 with `request`, and
    another one closes the month with the same body. Closing a closed month changes nothing."""
    shown, done = await closing.close(state, month_of(month), terms, key)
    response.status_code = 200 if done else 202
    return Month.model_validate(shown)


@router.get("/{month}/preview", response_model_exclude_unset=True)
async def preview_period(
    month: MonthName,
    _: StaffKey,
    state: StateDep,
    policy: Annotated[
        str | None, Query(description="Instead of the standing policy: none, proportional, even, fixed.")
    ] = None,
    shares: Annotated[
        str | None, Query(max_length=10_000, description="For fixed: `acme=60,bolt=40`.")
    ] = None,
) -> ClosingPreview:
    """Preview a closing: each tenant's statement, what no tenant pays for, and what prevents closing. Changes
    nothing."""
    return ClosingPreview.model_validate(await closing.preview(state, month_of(month), policy, shares))


@router.get("/{month}/verify")
async def verify_period(
    month: MonthName,
    _: StaffKey,
    state: StateDep,
    *,
    quick: Annotated[bool, Query(description="Do not read the records; such checks are `null`.")] = False,
) -> Verification:
    """Recompute a closed month from its records, roll-ups and prices, and compare. Takes as long as closing,
    unless it is `quick`; meanwhile, spaces are sent before the JSON to keep the connection alive."""
    month_of(month)
    await state.meter.flush()
    task = asyncio.create_task(
        state.ledger_process.aside().run(verified, month, state.clock.now(), quick=quick)
    )
    if await closing.finished(task):
        with closing.period_errors():
            return Verification.model_validate(task.result())
    unverified = {"month": month, "seal": ""}
    return StreamingResponse(kept_alive(unverified, task), media_type="application/json")  # type: ignore[return-value]  # the same JSON, later


@router.get("/{month}/proof")
async def proof(month: MonthName, key: FinanceKey, state: StateDep, tenant: Tenant = None) -> Proof:
    """A proof that a tenant's statement is part of the closed month and covers exactly its records. Check it
    offline with `florin cost verify --proof`."""
    whose = tenant or key.own_tenant
    if whose is None:
        raise FlorinError("invalid_value", "tenant is required.", param="tenant")
    with closing.period_errors():
        if key.own_tenant not in {None, whose} or not await is_own_month(state, key, month_of(month)):
            # not yours: as if there were none
            raise NotClosedError(no_statement(month_of(month), whose))
        document = await ledger_process_of(state, key).run(proof_of, month_of(month), whose)
        return Proof.model_validate(document)


@router.get("/{month}/records", response_model=Records)
async def records(
    month: MonthName,
    key: FinanceKey,
    state: StateDep,
    tenant: Tenant = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 1000,
    after: After = None,
) -> Response:
    """The records that a closed month covers, in the order of its Merkle trees: those that ended in it and
    had arrived by the cutoff, and late records of earlier months. Those of one tenant have the fields that
    its proof covers, which do not include the engine."""
    position = None if after is None else position_of(after)
    whose = tenant or key.own_tenant
    if key.own_tenant not in {None, whose} or not await is_own_month(state, key, month_of(month)):
        # not yours: as if there were none
        return rendered(b"[]", next=None)
    with closing.period_errors():
        page, last = await ledger_process_of(state, key).run(
            covered_page, month_of(month), whose, position, limit
        )
    return rendered(page, next=None if last is None else token_of(*last))


async def kept_alive(unverified: dict[str, Any], task: asyncio.Task[dict[str, Any]]) -> AsyncIterator[bytes]:
    """Spaces, then the task's result as JSON. `unverified`: what the answer says of itself if it fails."""
    while not task.done():
        yield b" "
        await closing.finished(task)
    try:
        report = task.result()
    except (NotClosedError, LedgerUnavailableError) as error:
        failed = {"name": "ledger", "ok": False, "detail": str(error)}
        report = {**unverified, "ok": False, "checks": [failed]}
    yield json.dumps(report).encode()

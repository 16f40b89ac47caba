"""Monthly periods: closing, statements, verification and proofs."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Annotated, Any
from weakref import WeakKeyDictionary

from fastapi import APIRouter, Path, Query, Response
from fastapi.responses import StreamingResponse

from gateway.api.dependencies import FinanceKey, StateDep
from gateway.api.finance.common import After, Tagged, ledger_process_of, only_staff, rendered
from gateway.api.finance.period_models import ClosingTerms, PeriodModel, Periods, Proof, Records, Verification
from gateway.api.finance.usage import position_of, token_of
from gateway.costs.allocation import PolicyError, policy_of
from gateway.costs.closing.closing import ClosingError, UnpricedError
from gateway.costs.maintenance.ledger_process import LedgerProcess
from gateway.costs.periods import PeriodError
from gateway.costs.periods import month as whole_month
from gateway.costs.reports.closed_months import (
    close_watched,
    covered_page,
    no_statement,
    one,
    overview,
    progress_of,
    proof_of,
    verified,
)
from gateway.costs.verification.verify import NotClosedError
from gateway.errors import FlorinError
from gateway.metering.ledger.ledger import LedgerUnavailableError
from gateway.operations.authorization import actor_of
from gateway.operations.state import State
from gateway.tenants.directory import Key, Role

router = APIRouter(prefix="/periods", route_class=Tagged)

ANSWER_SECONDS = 15.0
"""Below the timeouts of clients and proxies. If closing takes longer, the response is 202; if verification
takes longer, spaces keep the connection alive."""
_closings: WeakKeyDictionary[LedgerProcess, dict[tuple[Any, ...], asyncio.Task[bool]]] = WeakKeyDictionary()
"""Mutable: closings in progress on this worker, so that a repeated request joins one."""

Month = Annotated[str, Path(description="`2026-11`")]
Tenant = Annotated[str | None, Query(description="The tenant; a tenant's key can only name its own.")]


@router.get("", response_model_exclude_unset=True)
async def periods(key: FinanceKey, state: StateDep) -> Periods:
    """List all months with usage, oldest first."""
    await state.meter.flush()
    shown = await ledger_process_of(state, key).run(overview, state.clock.now(), _own(key))
    return Periods(data=[PeriodModel.model_validate(period) for period in shown])


@router.get("/{month}", response_model_exclude_unset=True)
async def period(month: Month, key: FinanceKey, state: StateDep) -> PeriodModel:
    """Show a month; if it is closed, with its statements."""
    return PeriodModel.model_validate(
        await ledger_process_of(state, key).run(one, _month(month), state.clock.now(), _own(key))
    )


@router.post(
    "/{month}/close", response_model_exclude_unset=True, responses={202: {"description": "Not done yet."}}
)
async def close_period(
    month: Month, terms: ClosingTerms, key: FinanceKey, state: StateDep, response: Response
) -> PeriodModel:
    """Close a month permanently. Its figures never change afterwards: later records become correction rows of
    the next open month. If the response is 202, repeat the request with the same body until it is 200 (`GET`
    shows the progress). Closing a closed month has no effect."""
    only_staff(key)
    _month(month)
    _check_shares(terms)
    if not await state.meter.flush():
        raise FlorinError(
            "cannot_close", "This worker is still shipping usage records to the ledger. Try again soon."
        )
    already = await _closed(state, month, terms, key)
    shown = await state.ledger_process.run(one, month, state.clock.now())
    if already is None:
        response.status_code = 202
        return PeriodModel.model_validate(shown)
    return PeriodModel.model_validate({**shown, "already": already})


@router.get("/{month}/verify")
async def verify_period(month: Month, key: FinanceKey, state: StateDep) -> Verification:
    """Recompute a closed month from records, roll-ups and prices, and compare. Takes as long as closing;
    meanwhile, spaces are sent before the JSON to keep the connection alive."""
    only_staff(key)
    _month(month)
    await state.meter.flush()
    task = asyncio.create_task(state.ledger_process.aside().run(verified, month, state.clock.now()))
    if await _done(task):
        with _refusals():
            return Verification.model_validate(task.result())
    return StreamingResponse(_kept_alive(month, task), media_type="application/json")  # type: ignore[return-value]  # the same JSON, later


@router.get("/{month}/proof")
async def proof(month: Month, key: FinanceKey, state: StateDep, tenant: Tenant = None) -> Proof:
    """Prove that a tenant's statement is part of the closed month and covers exactly its records. Check it
    offline with `florin cost verify --proof`."""
    own = _own(key)
    whose = tenant or own
    if whose is None:
        raise FlorinError("invalid_value", "tenant: required with a key of this role.", param="tenant")
    with _refusals():
        if own not in {None, whose}:  # another tenant's: as if there were none
            raise NotClosedError(no_statement(_month(month), whose))
        return Proof.model_validate(await ledger_process_of(state, key).run(proof_of, _month(month), whose))


@router.get("/{month}/records", response_model=Records)
async def records(
    month: Month,
    key: FinanceKey,
    state: StateDep,
    tenant: Tenant = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 1000,
    after: After = None,
) -> Response:
    """List the records that a closed month covers, in the order of its Merkle trees: those that ended in the
    month and arrived before the cutoff, and late ones of earlier months."""
    position = None if after is None else position_of(after)
    own = _own(key)
    whose = tenant or own
    if own not in {None, whose}:  # another tenant's: as if there were none
        return rendered(b"[]", next=None)
    with _refusals():
        page, last = await ledger_process_of(state, key).run(
            covered_page, _month(month), whose, position, limit
        )
    return rendered(page, next=None if last is None else token_of(*last))


async def _closed(state: State, of: str, terms: ClosingTerms, key: Key) -> bool | None:
    """Whether the month had been closed before; None: this or another worker is still closing it."""
    if (await state.ledger_process.run(one, of, state.clock.now()))[
        "state"
    ] == "closed":  # quick: only the terms are compared
        with _refusals():
            return await state.ledger_process.run(
                close_watched, of, now=state.clock.now(), by=key.id, actor=actor_of(key), **terms.model_dump()
            )
    mine = _closings.setdefault(state.ledger_process, {})
    name = (of, terms.model_dump_json())
    if name not in mine and await _elsewhere(state, of):
        return None
    if (task := mine.get(name)) is None:
        work = state.ledger_process.aside().run(
            close_watched, of, now=state.clock.now(), by=key.id, actor=actor_of(key), **terms.model_dump()
        )
        task = mine[name] = asyncio.create_task(work)
        task.add_done_callback(lambda done: _forget(mine, name, done))
    with _refusals():
        return task.result() if await _done(task) else None


async def _elsewhere(state: State, of: str) -> bool:
    """Whether another worker is closing the month. Waits up to ANSWER_SECONDS for it to finish."""
    until = time.monotonic() + ANSWER_SECONDS
    while await state.ledger_process.run(progress_of, of, state.clock.now()) is not None:
        if time.monotonic() >= until:
            return True
        await asyncio.sleep(1)
    return False


def _forget(mine: dict[tuple[Any, ...], asyncio.Task[bool]], name: Any, done: asyncio.Task[bool]) -> None:
    mine.pop(name, None)
    if not done.cancelled():
        done.exception()  # retrieved here, so that asyncio does not log it


async def _kept_alive(of: str, task: asyncio.Task[dict[str, Any]]) -> AsyncIterator[bytes]:
    while not task.done():
        yield b" "
        await _done(task)
    try:
        found = task.result()
    except (NotClosedError, LedgerUnavailableError) as error:
        failed = {"name": "ledger", "ok": False, "detail": str(error)}
        found = {"month": of, "root": "", "ok": False, "checks": [failed]}
    yield json.dumps(found).encode()


async def _done(task: asyncio.Task[Any]) -> bool:
    """Wait up to ANSWER_SECONDS. Returns whether the task is done."""
    done, _ = await asyncio.wait([task], timeout=ANSWER_SECONDS)
    return bool(done)


@contextmanager
def _refusals() -> Iterator[None]:
    """Translate errors of closing and of closed months."""
    try:
        yield
    except NotClosedError as error:
        raise FlorinError("not_found", str(error), param="month") from error
    except UnpricedError as error:
        raise FlorinError("missing_price", str(error)) from error
    except ClosingError as error:
        raise FlorinError("cannot_close", str(error)) from error


def _own(key: Key) -> str | None:
    """The only tenant that the key may see; None: all."""
    return key.tenant if key.role is Role.TENANT else None


def _month(of: str) -> str:
    try:
        whole_month(of)
    except PeriodError as error:
        raise FlorinError("invalid_value", str(error), param="month") from error
    return of


def _check_shares(terms: ClosingTerms) -> None:
    shares = ",".join(f"{tenant}={share}" for tenant, share in (terms.shares or {}).items())
    try:
        policy_of(terms.policy or "none", shares)
    except PolicyError as error:
        raise FlorinError("invalid_value", str(error), param=error.param) from error

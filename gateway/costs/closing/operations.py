"""Close months, and translate what closed months answer into API errors."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from gateway.costs.allocation import AllocationPolicy, policy_of
from gateway.costs.closing.checks import check_over
from gateway.costs.closing.closing import ClosingError, UnpricedError
from gateway.costs.closing.requests import request_or_approve
from gateway.costs.closing.schemas import ClosingTerms
from gateway.costs.maintenance.ledger_process import LedgerProcess
from gateway.costs.periods import month_of
from gateway.costs.policies.operations import check_known, policy_for
from gateway.costs.reports.closed_months import close_watched, one, previewed, progress_of
from gateway.costs.verification.verify import NotClosedError
from gateway.errors import FlorinError
from gateway.operations.authorization import actor_of
from gateway.operations.state import State
from gateway.operations.transaction import Json
from gateway.tenants.directory import Key

ANSWER_SECONDS = 15.0
"""Longest wait for a closing or a verification before the caller hears that it is still running; well below
the timeouts of clients and proxies."""
_closings: WeakKeyDictionary[LedgerProcess, dict[tuple[str, str], asyncio.Task[bool]]] = WeakKeyDictionary()
"""Mutable: the closings that this worker is running, so that a repeated request joins the first."""


async def close(state: State, month: str, terms: ClosingTerms, key: Key) -> tuple[Json, bool]:
    """Close a month. Returns the month, and False if the closing is still running after ANSWER_SECONDS, here
    or on another worker; call again with the same terms to wait on. `request` in the month: a second person
    has to close it. Once closed, `already` in the month says
    whether it was closed before. Raises FlorinError, LedgerUnavailableError."""
    if state.gateways.missing and not state.settings.separate_ledgers:
        raise FlorinError("cannot_close", state.gateways.missing)
    policy = policy_for(terms.policy, terms.shares, terms.shares_total)
    await check_known(state, policy.shares)
    if not await state.meter.flush():
        raise FlorinError(
            "cannot_close", "This worker is still bringing records from its log into the ledger: try again."
        )
    if not await _approved(state, month, terms, key):
        return await state.ledger_process.run(one, month, state.clock.now()), False
    already = await _closed(state, month, terms, key)
    shown = await state.ledger_process.run(one, month, state.clock.now())
    shown.pop("request", None)  # it was approved
    return (shown, False) if already is None else ({**shown, "already": already}, True)


async def preview(state: State, month: str, policy: str | None, shares: str | None) -> Json:
    """What closing the month now would bill. `policy`: instead of the standing policy. Raises FlorinError,
    LedgerUnavailableError."""
    allocation = await asked_policy(state, policy, shares)
    await state.meter.flush()
    figures: Json = await state.ledger_process.run(previewed, month, state.clock.now(), allocation)
    return figures


async def asked_policy(state: State, name: str | None, shares: str | None) -> AllocationPolicy | None:
    """The policy of a query, None without one; its shares are of known tenants. Raises FlorinError."""
    if name is None and shares is None:
        return None
    policy = policy_of(name or "fixed", shares)
    await check_known(state, policy.shares)
    return policy


async def finished(task: asyncio.Task[Any]) -> bool:
    """Wait for a task, at most ANSWER_SECONDS. Returns whether it is done."""
    done, _ = await asyncio.wait([task], timeout=ANSWER_SECONDS)
    return bool(done)


@contextmanager
def period_errors() -> Iterator[None]:
    """Raise the errors of closing and of closed months as FlorinError."""
    try:
        yield
    except NotClosedError as error:
        raise FlorinError("not_found", str(error), param="month") from error
    except UnpricedError as error:
        raise FlorinError("missing_price", str(error)) from error
    except ClosingError as error:
        raise FlorinError("cannot_close", str(error)) from error


async def _approved(state: State, month: str, terms: ClosingTerms, key: Key) -> bool:
    """Whether nobody, or nobody else, has to agree to closing the month; otherwise this requests it."""
    now = state.clock.now()
    if not state.settings.two_person_approval:
        return True
    if (await state.ledger_process.run(one, month, now))["state"] != "open":
        return True
    with period_errors():
        check_over(month_of(month), month, now, force=terms.force)
    return await asyncio.to_thread(
        request_or_approve, state.ledger, month, terms.model_dump_json(), now=now, actor=actor_of(key)
    )


async def _closed(state: State, month: str, terms: ClosingTerms, key: Key) -> bool | None:
    """Whether the month was closed before; None if it is still being closed."""

    async def run(process: LedgerProcess) -> bool:
        by = {"now": state.clock.now(), "by": key.id, "actor": actor_of(key)}
        return await process.run(close_watched, month, **by, **terms.model_dump(exclude={"shares_total"}))

    if (await state.ledger_process.run(one, month, state.clock.now()))["state"] == "closed":
        with period_errors():  # quick: `close` only compares the terms
            return await run(state.ledger_process)
    running = _closings.setdefault(state.ledger_process, {})
    name = (month, terms.model_dump_json())
    if name not in running and await _closes_elsewhere(state, month):
        return None
    if (task := running.get(name)) is None:
        task = running[name] = asyncio.create_task(run(state.ledger_process.aside()))
        task.add_done_callback(lambda done: _forget(running, name, done))
    with period_errors():
        return task.result() if await finished(task) else None


async def _closes_elsewhere(state: State, month: str) -> bool:
    """Whether another worker is closing the month, and does not finish within ANSWER_SECONDS."""
    until = time.monotonic() + ANSWER_SECONDS
    while await state.ledger_process.run(progress_of, month, state.clock.now()) is not None:
        if time.monotonic() >= until:
            return True
        await asyncio.sleep(1)
    return False


def _forget(
    running: dict[tuple[str, str], asyncio.Task[bool]], name: tuple[str, str], done: asyncio.Task[bool]
) -> None:
    running.pop(name, None)
    if not done.cancelled():
        done.exception()  # marks it as retrieved; the next request for this month gets its own

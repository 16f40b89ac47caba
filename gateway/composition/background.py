"""Background tasks of a worker."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

from adapters.store.feed import Follower
from gateway.admission.in_flight import InFlightLimits
from gateway.observability.conditions import Conditions
from gateway.observability.metrics import Metrics
from gateway.routing.leases import Leases

log = logging.getLogger(__name__)

RESTART_SECONDS = 0.5

Work = Callable[[], Awaitable[None]]


def run_in_background(stack: AsyncExitStack, *works: Work) -> None:
    """Run each until the stack is closed."""
    for work in works:
        stack.push_async_callback(cancel_task, asyncio.create_task(_run_forever(work)))


async def export_conditions(conditions: Conditions, follower: Follower, metrics: Metrics) -> None:
    while True:
        metrics.feed_connected(connected=follower.connected)
        metrics.conditions({condition.code for condition in conditions.now()})
        await asyncio.sleep(1)


async def export_pending(in_flight: InFlightLimits, leases: Leases, metrics: Metrics) -> None:
    while True:
        metrics.requests_pending(max(0, in_flight.requests - leases.in_flight))
        leases.turns.show(metrics)
        await asyncio.sleep(1)


async def _run_forever(work: Work) -> None:
    """Log and survive a defect: a worker that no longer renews its leases, or repairs nothing, would look
    healthy."""
    while True:
        try:
            await work()
        except Exception:  # a defect; the task must go on
            log.exception("Background task %s failed; restarting", _name(work))
        await asyncio.sleep(RESTART_SECONDS)


def _name(work: Callable[..., object]) -> str:
    """The name of a coroutine function, also within a partial."""
    while isinstance(work, partial):
        work = work.func
    return getattr(work, "__qualname__", repr(work))


async def cancel_task(task: asyncio.Task[Any]) -> None:
    """Cancel until the task has ended: libraries occasionally swallow a cancellation."""
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=1)
    if not task.cancelled():
        task.result()

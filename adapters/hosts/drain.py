"""An engine's end that nobody notices: the gateway stops sending, what runs finishes, then SIGTERM."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Coroutine
from typing import Any

from adapters.hosts.engine_watch import EngineWatch
from adapters.hosts.life import Host, Life
from adapters.hosts.link import Link, LinkDownError, LinkRefusedError

log = logging.getLogger(__name__)

QUIET_SECONDS = 1.5
"""For which nothing may run before the engine is told to end: some worker of the gateway may hear of the
drain later than the one that was told."""
STOP_SECONDS = 20.0
"""From SIGTERM to SIGKILL."""
HURRY_SECONDS = 3.0
"""The same for an operator who has asked twice."""
_LOOK_SECONDS = 0.25


async def drain(life: Life, link: Link, watch: EngineWatch, host: Host) -> None:
    """Ends the engine, after `host.drain_timeout` at the latest."""
    life.stopping = True
    deadline = time.monotonic() + host.drain_timeout
    if life.up and life.serving and life.registered and life.patient:
        log.info("draining engine %s, for %.0f s at most", host.name, host.drain_timeout)
        await _patiently(life, deadline, _announce(life, link, watch, host, deadline))
        await _patiently(life, math.inf, _until_quiet(life, watch, host, deadline))
    life.ending = True
    if life.engine and life.up:
        await life.engine.stop(STOP_SECONDS if life.patient else HURRY_SECONDS)


async def _patiently(life: Life, deadline: float, work: Coroutine[Any, Any, None]) -> None:
    """`work`, until the deadline or the operator's second signal: a gateway or an engine that hangs holds up
    neither."""
    task = asyncio.create_task(work)
    try:
        while not task.done() and life.patient and time.monotonic() < deadline:
            await asyncio.wait([task], timeout=_LOOK_SECONDS)
        if task.done():
            task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _announce(life: Life, link: Link, watch: EngineWatch, host: Host, deadline: float) -> None:
    """So that the gateway sends no new requests. One that is away sends none either: once the engine is idle,
    nobody waits for it."""
    while time.monotonic() < deadline and life.patient and life.up:
        try:
            await link.stopping(host.name, {"epoch": life.registered})
        except LinkDownError as error:
            life.mention(str(error))
            if await watch.requests() == 0:
                return
            await asyncio.sleep(_LOOK_SECONDS)
        except LinkRefusedError as error:
            log.warning("the gateway does not drain engine %s: %s", host.name, error)
            return
        else:
            return


async def _until_quiet(life: Life, watch: EngineWatch, host: Host, deadline: float) -> None:
    quiet_since: float | None = None
    while life.patient and life.up:
        running = await watch.requests()
        now = time.monotonic()
        quiet_since = (quiet_since or now) if running == 0 else None
        if quiet_since is not None and now - quiet_since >= QUIET_SECONDS:
            log.info("engine %s is drained", host.name)
            return
        if now > deadline:
            if running == 0:  # the gateway, which hung, has not let it be for long
                return
            log.warning(
                "engine %s still has %s requests: they are cut off",
                host.name,
                "an unknown number of" if running is None else running,
            )
            return
        await asyncio.sleep(_LOOK_SECONDS)

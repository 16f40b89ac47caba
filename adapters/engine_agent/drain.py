"""An engine's end that nobody notices: the gateway stops sending, what runs finishes, then SIGTERM."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Coroutine
from typing import Any

from adapters.engine_agent.engine_client import EngineWatch
from adapters.engine_agent.gateway_client import GatewayClient, GatewayDownError, GatewayRefusedError
from adapters.engine_agent.state import AgentState, HostConfig

log = logging.getLogger(__name__)

QUIET_SECONDS = 1.5
"""For which nothing may run before the engine is told to end: some worker of the gateway may hear of the
drain later than the one that was told."""
STOP_SECONDS = 20.0
"""From SIGTERM to SIGKILL."""
HURRY_SECONDS = 3.0
"""The same for an operator who has asked twice."""
_LOOK_SECONDS = 0.25


async def drain(state: AgentState, gateway: GatewayClient, watch: EngineWatch, host: HostConfig) -> None:
    """Ends the engine, after `host.drain_timeout` at the latest."""
    state.stopping = True
    deadline = time.monotonic() + host.drain_timeout
    if state.up and state.serving and state.registered and state.patient:
        log.info("draining engine %s, for %.0f s at most", host.name, host.drain_timeout)
        await _patiently(state, deadline, _announce(state, gateway, watch, host, deadline))
        await _patiently(state, math.inf, _until_quiet(state, watch, host, deadline))
    state.ending = True
    if state.engine and state.up:
        await state.engine.stop(STOP_SECONDS if state.patient else HURRY_SECONDS)


async def _patiently(state: AgentState, deadline: float, work: Coroutine[Any, Any, None]) -> None:
    """`work`, until the deadline or the operator's second signal: a gateway or an engine that hangs holds up
    neither."""
    task = asyncio.create_task(work)
    try:
        while not task.done() and state.patient and time.monotonic() < deadline:
            await asyncio.wait([task], timeout=_LOOK_SECONDS)
        if task.done():
            task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _announce(
    state: AgentState, gateway: GatewayClient, watch: EngineWatch, host: HostConfig, deadline: float
) -> None:
    """So that the gateway sends no new requests. One that is away sends none either: once the engine is idle,
    nobody waits for it."""
    while time.monotonic() < deadline and state.patient and state.up:
        try:
            await gateway.stopping(host.name, {"epoch": state.registered})
        except GatewayDownError as error:
            state.mention(str(error))
            if await watch.requests() == 0:
                return
            await asyncio.sleep(_LOOK_SECONDS)
        except GatewayRefusedError as error:
            log.warning("the gateway does not drain engine %s: %s", host.name, error)
            return
        else:
            return


async def _until_quiet(state: AgentState, watch: EngineWatch, host: HostConfig, deadline: float) -> None:
    quiet_since: float | None = None
    while state.patient and state.up:
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

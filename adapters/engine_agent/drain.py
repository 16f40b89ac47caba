"""Graceful shutdown of an engine: the gateway stops sending, running requests finish, then SIGTERM."""

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
"""How long the engine must be idle before SIGTERM, because some gateway workers learn of the drain later than
others."""
STOP_SECONDS = 20.0
"""From SIGTERM to SIGKILL."""
HURRY_SECONDS = 3.0
"""The same after a second signal."""
_LOOK_SECONDS = 0.25


async def drain(state: AgentState, gateway: GatewayClient, watch: EngineWatch, host: HostConfig) -> None:
    """Drain and stop the engine, within `host.drain_timeout`."""
    state.stopping = True
    deadline = time.monotonic() + host.drain_timeout
    if state.up and state.serving and state.registered and state.patient:
        log.info("Engine %s: draining for up to %.0f s", host.name, host.drain_timeout)
        await _patiently(state, deadline, _announce(state, gateway, watch, host, deadline))
        await _patiently(state, math.inf, _until_quiet(state, watch, host, deadline))
    state.ending = True
    if state.engine and state.up:
        await state.engine.stop(STOP_SECONDS if state.patient else HURRY_SECONDS)


async def _patiently(state: AgentState, deadline: float, work: Coroutine[Any, Any, None]) -> None:
    """Run `work` until the deadline or a second signal, so that a hanging gateway or engine delays
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
    """Tell the gateway to send no new requests. An unavailable gateway sends none either, so give up on it
    once the engine is idle."""
    while time.monotonic() < deadline and state.patient and state.up:
        try:
            await gateway.stopping(host.name, {"epoch": state.registered})
        except GatewayDownError as error:
            state.mention(str(error))
            if await watch.requests() == 0:
                return
            await asyncio.sleep(_LOOK_SECONDS)
        except GatewayRefusedError as error:
            log.warning("Engine %s: the gateway refused the drain: %s", host.name, error)
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
            log.info("Engine %s: drained", host.name)
            return
        if now > deadline:
            if running == 0:  # a hung gateway learned of the drain only now
                return
            log.warning(
                "Engine %s: drain timed out; aborting %s requests",
                host.name,
                "an unknown number of" if running is None else running,
            )
            return
        await asyncio.sleep(_LOOK_SECONDS)

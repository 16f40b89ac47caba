"""Graceful shutdown of an engine: the gateway loads its adapters elsewhere and stops sending, running
requests finish, then SIGTERM."""

from __future__ import annotations

import asyncio
import logging
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
    """Drain and stop the engine, within `host.drain_timeout` or the time of a spot notice."""
    state.stopping = True
    now = time.monotonic()
    state.stop_by = min(state.stop_by, now + host.drain_timeout)
    if state.up and state.serving and state.registered and state.patient:
        log.info("Engine %s: draining for up to %.0f s", host.name, state.stop_by - now)
        await _patiently(state, _announce(state, gateway, watch, host))
        await _patiently(state, _until_quiet(state, watch, host), timed=False)
    state.ending = True
    if state.engine and state.up:
        await state.engine.stop(STOP_SECONDS if state.patient else HURRY_SECONDS)


async def _patiently(state: AgentState, work: Coroutine[Any, Any, None], *, timed: bool = True) -> None:
    """Run `work` until the drain's time is over or a second signal, so that a hanging gateway or engine
    delays neither. Not `timed`: `work` keeps to the time itself."""
    task = asyncio.create_task(work)
    try:
        while not task.done() and state.patient and (not timed or time.monotonic() < state.stop_by):
            await asyncio.wait([task], timeout=_LOOK_SECONDS)
        if task.done():
            task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _announce(state: AgentState, gateway: GatewayClient, watch: EngineWatch, host: HostConfig) -> None:
    """Tell the gateway to send no new requests, and wait until it sends none: it first loads elsewhere what
    the engine holds. An unavailable gateway sends none either, so give up on it once the engine is idle."""
    while (left := state.stop_by - time.monotonic()) > 0 and state.patient and state.up:
        try:
            answer = await gateway.stopping(host.name, {"epoch": state.registered, "seconds": left})
            if answer["moved"]:
                return
        except GatewayDownError as error:
            state.warn(str(error))
            if await watch.requests() == 0:
                return
        except GatewayRefusedError as error:
            log.warning("Engine %s: the gateway refused the drain: %s", host.name, error)
            return
        await asyncio.sleep(_LOOK_SECONDS)


async def _until_quiet(state: AgentState, watch: EngineWatch, host: HostConfig) -> None:
    quiet_since: float | None = None
    while state.patient and state.up:
        running = await watch.requests()
        now = time.monotonic()
        quiet_since = (quiet_since or now) if running == 0 else None
        if quiet_since is not None and now - quiet_since >= QUIET_SECONDS:
            log.info("Engine %s: drained", host.name)
            return
        if now > state.stop_by:
            if running == 0:  # a hung gateway learned of the drain only now
                return
            log.warning(
                "Engine %s: drain timed out; aborting %s requests",
                host.name,
                "an unknown number of" if running is None else running,
            )
            return
        await asyncio.sleep(_LOOK_SECONDS)

"""`florin engine run`: keeps one engine running and registered, and drains it before it stops.

Three tasks run concurrently: a loop that keeps the engine's processes running (`supervisor`), heartbeats to
the gateway (`heartbeat`), and the agent server, through which the gateway requests files (`server`). Each
start of the engine is a new epoch, so a restarted engine is assumed to be empty. If the gateway is
unavailable, the agent keeps retrying and the engine stays up.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from adapters.engine_agent.artifact_download import StageError
from adapters.engine_agent.drain import HURRY_SECONDS, drain
from adapters.engine_agent.engine_client import EngineWatch
from adapters.engine_agent.engine_process import EngineLaunchError, EngineProcess, end_marked
from adapters.engine_agent.gateway_client import GatewayClient, GatewayDownError, GatewayRefusedError
from adapters.engine_agent.handover import AgentHandover, HandoverError, Successor, hand_over, taken_over
from adapters.engine_agent.heartbeat import HeartbeatSender
from adapters.engine_agent.server import AgentServer
from adapters.engine_agent.staging import Cache
from adapters.engine_agent.state import (
    HEARTBEAT_SECONDS,
    HEARTBEAT_TTL_MS,
    AgentState,
    HostConfig,
    HostSecurity,
)
from adapters.engine_agent.supervisor import Supervisor
from adapters.security.renewal import watch as watch_files

log = logging.getLogger(__name__)

STOP_MARGIN = 3.0
"""Seconds of a spot notice that are left for the engine to stop."""
STAGING_SECONDS = 30.0
"""How long an agent that restarts itself waits for downloads to finish."""


class Exit(IntEnum):
    DONE = 0
    """Drained and stopped, as asked."""
    FAILED = 1
    """Could not start: the name is taken, the key refused, or the command or cache directory unusable."""


class NameTakenError(Exception):
    """The gateway refuses an agent with this name or key."""


@dataclass(slots=True)
class Agent:
    """Runs one engine on this host: keeps it running, registers it, and drains it before stopping.

    Invariants: no other live agent uses its name at the gateway; each start of the engine is a new epoch; no
    engine process outlives the agent; an unavailable gateway never stops a running engine. The command
    `florin engine run` creates one Agent and calls `run` once; signal handlers only set flags in `state`.
    """

    host: HostConfig
    state: AgentState
    gateway: GatewayClient
    watch: EngineWatch
    security: HostSecurity = field(default_factory=HostSecurity)
    successor: Successor | None = None
    """How this process becomes its successor when it restarts itself."""
    running: AgentHandover | None = None
    """What the previous agent handed over."""

    async def run(self) -> Exit:
        """Run until asked to stop, or until it turns out that it cannot start."""
        cache = Cache(self.host.cache_dir.absolute(), self.host.cache_bytes, self.gateway, self.watch.listed)
        agent_server = AgentServer(
            cache,
            self._state,
            spot_notice=lambda seconds: self.state.ask_to_stop_within(max(0.0, seconds - STOP_MARGIN)),
            restart=self.state.ask_to_restart_engine,
            is_own_key=self.gateway.is_key,
            tls=self.security.server,
        )
        try:
            before = self.running
            await asyncio.to_thread(cache.open, before.lock if before else None)
            if before:
                await self._take_over(before, cache, agent_server)
            elif left := await asyncio.to_thread(end_marked, str(cache.root)):
                log.warning("Engine %s: killed %d orphaned processes of an earlier run", self.host.name, left)
            await agent_server.open(
                self.host.agent_host, self.host.agent_port, before.agent_server if before else ()
            )
            if not before:
                await self._unless_asked_to_stop(self._take_name())
            if before or not self.state.stop_requested.is_set():
                await self._run_until_stopped(
                    cache,
                    HeartbeatSender(self.host, self.state, self.gateway, self.watch, cache, agent_server),
                )
        except (StageError, EngineLaunchError, NameTakenError) as error:
            log.error("%s", error)
            return Exit.FAILED
        except OSError as error:
            log.error("The agent cannot start: %s.", error)
            return Exit.FAILED
        finally:
            await cache.cancel_downloads()
            await agent_server.close()
            cache.close()
        return Exit.DONE

    async def _take_over(self, before: AgentHandover, cache: Cache, agent_server: AgentServer) -> None:
        state, engine = self.state, before.engine
        taken_over(before)
        state.instance, state.starts = before.instance, before.starts
        state.epoch, state.started, state.registered = before.epoch, before.started, before.registered
        agent_server.token = before.token
        if engine:
            state.engine = await EngineProcess.adopt(engine, mark=str(cache.root), on_line=self.host.on_line)
            state.began, state.healthy_since = engine.began, engine.healthy_since
            state.serving = engine.healthy_since is not None
        log.info("Agent restarted; engine %s keeps running", self.host.name)
        if before.command != self.host.command:
            log.warning("Engine %s: command changed; takes effect at its next start", self.host.name)

    async def _restart(self, cache: Cache, agent_server: AgentServer) -> None:
        """Replace this process by its successor; return if that fails."""
        assert self.successor
        try:
            await self.successor.check()
        except HandoverError as error:
            log.error("Agent restart failed, continuing: %s", error)
            return
        deadline = time.monotonic() + STAGING_SECONDS
        while agent_server.busy and time.monotonic() < deadline:  # noqa: ASYNC110  # rare, so polling is fine
            await asyncio.sleep(0.05)
        state = self.state
        if state.stop_requested.is_set():
            return
        engine = state.engine if state.engine and state.engine.alive else None
        log.info("Restarting the agent of engine %s", self.host.name)
        running = AgentHandover(
            instance=state.instance,
            starts=state.starts,
            epoch=state.epoch,
            started=state.started,
            registered=state.registered,
            token=agent_server.token,
            lock=cache.lock,
            agent_server=agent_server.descriptors,
            command=self.host.command,
            engine=engine.prepare_handover(began=state.began, healthy_since=state.healthy_since)
            if engine
            else None,
        )
        try:
            hand_over(running, self.successor)
        except HandoverError as error:
            log.error("Agent restart failed, continuing: %s", error)
            if engine:
                engine.cancel_handover()

    async def _restart_on_request(self, cache: Cache, agent_server: AgentServer) -> None:
        while True:
            await self.state.restart_requested.wait()
            self.state.restart_requested.clear()
            await self._restart(cache, agent_server)

    async def _run_until_stopped(self, cache: Cache, heartbeat: HeartbeatSender) -> None:
        """Run the engine and the heartbeats until asked to stop. Raises EngineLaunchError if the engine's
        command cannot be executed."""
        supervisor = Supervisor(self.host, self.state, self.watch, cache)
        running = asyncio.create_task(supervisor.run(), name="engine")
        reporting = asyncio.create_task(heartbeat.run(), name="heartbeat")
        reloading = asyncio.create_task(watch_files(self.security.renewables), name="certificates")
        stopping = asyncio.create_task(self.state.stop_requested.wait(), name="stop")
        restarting = asyncio.create_task(
            self._restart_on_request(cache, heartbeat.agent_server), name="successor"
        )
        try:
            await asyncio.wait({running, reporting, stopping}, return_when=asyncio.FIRST_COMPLETED)
            for work in (running, reporting):
                if work.done():
                    work.result()  # re-raises its exception: neither task ends on its own
            running.cancel()
            restarting.cancel()
            await drain(self.state, self.gateway, self.watch, self.host)
        finally:
            tasks = running, reporting, reloading, stopping, restarting
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if self.state.engine and self.state.engine.alive:
                await self.state.engine.stop(HURRY_SECONDS)
            await heartbeat.leave()

    async def _unless_asked_to_stop(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work`, but abandon it when asked to stop, so that a hanging gateway cannot delay the
        shutdown."""
        working = asyncio.create_task(work)
        tasks = working, asyncio.create_task(self.state.stop_requested.wait())
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                working.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _take_name(self) -> None:
        """Wait until no other agent uses this name; raise NameTakenError if one stays alive. A killed agent
        counts as alive until its last heartbeat expires."""
        until = time.monotonic() + HEARTBEAT_TTL_MS / 1000 + HEARTBEAT_SECONDS
        while not self.state.stop_requested.is_set():
            try:
                engine = await self.gateway.engine(self.host.name)
            except GatewayRefusedError as error:
                raise NameTakenError(f"The gateway at {self.gateway.url} refuses: {error}") from error
            except GatewayDownError as error:
                self.state.warn(f"{error} Starting the engine meanwhile.")
                return
            if not engine or not engine.get("heartbeat"):
                return
            if time.monotonic() > until:
                raise NameTakenError(
                    f"Engine {self.host.name} is run by another live agent at {engine['agent']}: "
                    "stop it, or use a different --name."
                )
            await asyncio.sleep(0.5)

    def _state(self) -> dict[str, Any]:
        """For GET /health."""
        state = self.state
        return {
            "name": self.host.name,
            "epoch": state.epoch,
            "engine": "up" if state.up else "down",
            "stopping": state.stopping,
            "starts": state.starts,
        }

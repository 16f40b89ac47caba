"""`florin engine run`: keeps one engine running and registered, and drains it before it stops.

Three tasks run concurrently: a loop that keeps the engine's processes running (here), heartbeats to the
gateway (`heartbeat`), and the agent server, through which the gateway requests files. Each start of the
engine is a new epoch, so a restarted engine is assumed to be empty. If the gateway is unavailable, the agent
keeps retrying and the engine stays up.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from adapters.engine_agent.drain import HURRY_SECONDS, drain
from adapters.engine_agent.engine_client import EngineWatch
from adapters.engine_agent.gateway_client import GatewayClient, GatewayDownError, GatewayRefusedError
from adapters.engine_agent.handover import AgentHandover, HandoverError, Successor, hand_over, taken_over
from adapters.engine_agent.heartbeat import HeartbeatSender
from adapters.engine_agent.security import HostSecurity
from adapters.engine_agent.server import AgentServer
from adapters.engine_agent.staging import Cache, StageError
from adapters.engine_agent.state import AgentState, HostConfig
from adapters.engine_agent.supervisor import Backoff, EngineLaunchError, EngineProcess, end_marked
from adapters.engine_agent.timing import HEARTBEAT_SECONDS, HEARTBEAT_TTL_MS
from adapters.security.tls import watch as watch_files

log = logging.getLogger(__name__)

HEALTH_SECONDS = 0.25
"""Seconds between health checks of a starting engine."""
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
        agent_server = AgentServer(cache, self._state, tls=self.security.server)
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
            if before or not self.state.asked.is_set():
                await self._live(
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
            await cache.drop()
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
            state.engine = await EngineProcess.adopt(engine, mark=str(cache.root), say=self.host.say)
            state.began, state.healthy_since = engine.began, engine.healthy_since
            state.serving = engine.healthy_since is not None
        log.info("Agent restarted; engine %s keeps running", self.host.name)
        if before.command != self.host.command:
            log.warning("Engine %s: command changed; takes effect at its next start", self.host.name)

    async def _renew(self, cache: Cache, agent_server: AgentServer) -> None:
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
        if state.asked.is_set():
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
            engine=engine.leave(began=state.began, healthy_since=state.healthy_since) if engine else None,
        )
        try:
            hand_over(running, self.successor)
        except HandoverError as error:
            log.error("Agent restart failed, continuing: %s", error)
            if engine:
                engine.stay()

    async def _renewing(self, cache: Cache, agent_server: AgentServer) -> None:
        while True:
            await self.state.renew.wait()
            self.state.renew.clear()
            await self._renew(cache, agent_server)

    async def _live(self, cache: Cache, heartbeat: HeartbeatSender) -> None:
        """Run the engine and the heartbeats until asked to stop. Raises EngineLaunchError if the engine's
        command cannot be executed."""
        keeping = asyncio.create_task(self._keep(cache), name="engine")
        telling = asyncio.create_task(heartbeat.run(), name="heartbeat")
        renewing = asyncio.create_task(watch_files(self.security.renewables), name="certificates")
        asked = asyncio.create_task(self.state.asked.wait(), name="stop")
        following = asyncio.create_task(self._renewing(cache, heartbeat.agent_server), name="successor")
        try:
            await asyncio.wait({keeping, telling, asked}, return_when=asyncio.FIRST_COMPLETED)
            for work in (keeping, telling):
                if work.done():
                    work.result()  # re-raises its exception: neither task ends on its own
            keeping.cancel()
            following.cancel()
            await drain(self.state, self.gateway, self.watch, self.host)
        finally:
            tasks = keeping, telling, renewing, asked, following
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if self.state.engine and self.state.engine.alive:
                await self.state.engine.stop(HURRY_SECONDS)
            await heartbeat.leave()

    async def _unless_asked_to_stop(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work`, but abandon it when asked to stop, so that a hanging gateway cannot delay the
        shutdown."""
        tasks = working, asked = asyncio.create_task(work), asyncio.create_task(self.state.asked.wait())
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                working.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(working, asked, return_exceptions=True)

    async def _take_name(self) -> None:
        """Wait until no other agent uses this name; raise NameTakenError if one stays alive. A killed agent
        counts as alive until its last heartbeat expires."""
        until = time.monotonic() + HEARTBEAT_TTL_MS / 1000 + HEARTBEAT_SECONDS
        while not self.state.asked.is_set():
            try:
                found = await self.gateway.engine(self.host.name)
            except GatewayRefusedError as error:
                raise NameTakenError(f"The gateway at {self.gateway.url} refuses: {error}") from error
            except GatewayDownError as error:
                self.state.mention(f"{error} Starting the engine meanwhile.")
                return
            if not found or not found.get("heartbeat"):
                return
            if time.monotonic() > until:
                raise NameTakenError(
                    f"Engine {self.host.name} is run by another live agent at {found['agent']}: "
                    "stop it, or use a different --name."
                )
            await asyncio.sleep(0.5)

    async def _keep(self, cache: Cache) -> None:
        """Start the engine and restart it whenever it exits. Raises EngineLaunchError if its command cannot
        be executed the first time."""
        backoff = Backoff()
        while True:
            healthy_since = await self._one_run(cache)
            pause = backoff.after(time.monotonic() - healthy_since if healthy_since else 0.0)
            log.warning("Engine %s: restarting in %.0f s", self.host.name, pause)
            await asyncio.sleep(pause)

    async def _one_run(self, cache: Cache) -> float | None:
        """Run the engine until it exits. Return when it became healthy, or None if it never did."""
        state, name = self.state, self.host.name
        if state.engine is None or not state.engine.alive:
            engine = await self._started(cache)
            if engine is None:
                return None
        else:
            engine = state.engine  # started by the previous agent
        if not state.serving:
            state.healthy_since = await self._healthy_since(engine)
            if state.healthy_since:
                log.info("Engine %s: healthy after %.1f s", name, state.healthy_since - state.began)
                state.begin_epoch()
        code = await engine.wait()
        cache.forget()  # now, because the next process may get files before it is healthy
        state.serving = False
        how = f"killed by signal {-code}" if code < 0 else f"exited with code {code}"
        when = "" if state.healthy_since else " before it became healthy"
        log.error("Engine %s: %s%s. Last output:", name, how, when)
        for line in engine.tail.text().splitlines():
            log.error("Engine %s: %s", name, line)
        return state.healthy_since

    async def _started(self, cache: Cache) -> EngineProcess | None:
        """Start the engine; None, after logging the reason, if that fails."""
        name = self.host.name
        if await self.watch.taken():
            log.error(
                "Engine %s: another process listens at %s; stop it, or use a different --port",
                self.host.name,
                self.watch.url,
            )
            return None
        self.state.starts += 1
        try:
            engine = await EngineProcess.start(
                self.host.command, self.host.environ, mark=str(cache.root), say=self.host.say
            )
        except EngineLaunchError as error:
            if self.state.starts == 1:
                raise
            log.error("Engine %s: start failed: %s", name, error)
            return None
        self.state.engine, self.state.began, self.state.healthy_since = engine, time.monotonic(), None
        log.info("Engine %s: starting, pid %d", name, engine.pid)
        return engine

    async def _healthy_since(self, engine: EngineProcess) -> float | None:
        """Wait for the first healthy response; None if the engine exited or was stopped for taking too
        long."""
        deadline = time.monotonic() + self.host.start_timeout
        while engine.alive:
            if await self.watch.healthy() and engine.alive:
                return time.monotonic()
            if time.monotonic() > deadline:
                log.error(
                    "Engine %s: not healthy after %.0f s; stopping it",
                    self.host.name,
                    self.host.start_timeout,
                )
                engine.kill()
                return None
            await asyncio.sleep(HEALTH_SECONDS)
        return None

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

"""`florin engine run`: one engine, kept alive, kept known to the gateway, and drained before it ends.

Side by side run: a loop that keeps the engine's processes running (here), one that keeps the gateway
informed (`heartbeat`), and the agent server, where the gateway asks for files. Each start of the engine is an
epoch of its own, so that nobody believes in what an earlier one held. A gateway that is away is waited for;
the engine stays up.
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
"""Between looks at an engine that is starting."""
STAGING_SECONDS = 30.0
"""So long does an agent that starts itself anew wait for files that are being fetched."""


class Exit(IntEnum):
    DONE = 0
    """Drained and stopped, as asked."""
    FAILED = 1
    """It could not begin: the name is taken, the key refused, the command or the cache directory unusable."""


class NameTakenError(Exception):
    """The gateway lets no agent of this name, or with this key, begin."""


@dataclass(slots=True)
class Agent:
    host: HostConfig
    state: AgentState
    gateway: GatewayClient
    watch: EngineWatch
    security: HostSecurity = field(default_factory=HostSecurity)
    successor: Successor | None = None
    """How this process becomes the next agent."""
    running: AgentHandover | None = None
    """What the one before has left."""

    async def run(self) -> Exit:
        """Until it is asked to stop, or cannot begin."""
        cache = Cache(self.host.cache_dir.absolute(), self.host.cache_bytes, self.gateway, self.watch.listed)
        agent_server = AgentServer(cache, self._state, tls=self.security.server)
        try:
            before = self.running
            await asyncio.to_thread(cache.open, before.lock if before else None)
            if before:
                await self._take_over(before, cache, agent_server)
            elif left := await asyncio.to_thread(end_marked, str(cache.root)):
                log.warning("ended %d processes that an earlier engine had left behind", left)
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
        log.info("the agent was started anew; its engine %s goes on", self.host.name)
        if before.command != self.host.command:
            log.warning("engine %s runs with the command of before until its next start", self.host.name)

    async def _renew(self, cache: Cache, agent_server: AgentServer) -> None:
        """Become the next agent; return if that cannot be."""
        assert self.successor
        try:
            await self.successor.check()
        except HandoverError as error:
            log.error("The agent was not started anew, and goes on: %s", error)
            return
        deadline = time.monotonic() + STAGING_SECONDS
        while agent_server.busy and time.monotonic() < deadline:  # noqa: ASYNC110  # once in many months
            await asyncio.sleep(0.05)
        state = self.state
        if state.asked.is_set():
            return
        engine = state.engine if state.engine and state.engine.alive else None
        log.info("starting the agent of %s anew", self.host.name)
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
            log.error("The agent could not be started anew, and goes on: %s", error)
            if engine:
                engine.stay()

    async def _renewing(self, cache: Cache, agent_server: AgentServer) -> None:
        while True:
            await self.state.renew.wait()
            self.state.renew.clear()
            await self._renew(cache, agent_server)

    async def _live(self, cache: Cache, heartbeat: HeartbeatSender) -> None:
        """Raises EngineLaunchError when the engine's command cannot be executed."""
        keeping = asyncio.create_task(self._keep(cache), name="engine")
        telling = asyncio.create_task(heartbeat.run(), name="heartbeat")
        renewing = asyncio.create_task(watch_files(self.security.renewables), name="certificates")
        asked = asyncio.create_task(self.state.asked.wait(), name="stop")
        following = asyncio.create_task(self._renewing(cache, heartbeat.agent_server), name="successor")
        try:
            await asyncio.wait({keeping, telling, asked}, return_when=asyncio.FIRST_COMPLETED)
            for work in (keeping, telling):
                if work.done():
                    work.result()  # raises what ended it: neither ends by itself
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
        """`work`, given up when the operator ends the agent: a gateway that hangs does not hold that up."""
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
        """Raises NameTakenError while another agent of this name lives. One that was killed a moment ago
        counts as living until its last heartbeat lapses, so this waits for that."""
        until = time.monotonic() + HEARTBEAT_TTL_MS / 1000 + HEARTBEAT_SECONDS
        while not self.state.asked.is_set():
            try:
                found = await self.gateway.engine(self.host.name)
            except GatewayRefusedError as error:
                raise NameTakenError(f"The gateway at {self.gateway.url} refuses: {error}") from error
            except GatewayDownError as error:
                self.state.mention(f"{error} The engine starts meanwhile.")
                return
            if not found or not found.get("heartbeat"):
                return
            if time.monotonic() > until:
                raise NameTakenError(
                    f"Engine {self.host.name} is run by another agent, at {found['agent']}, which is alive: "
                    "stop that one, or give this one another --name."
                )
            await asyncio.sleep(0.5)

    async def _keep(self, cache: Cache) -> None:
        """Start the engine, and again whenever it ends. Raises EngineLaunchError when its command cannot be
        executed even the first time."""
        backoff = Backoff()
        while True:
            healthy_since = await self._one_run(cache)
            pause = backoff.after(time.monotonic() - healthy_since if healthy_since else 0.0)
            log.warning("engine %s starts again in %.0f s", self.host.name, pause)
            await asyncio.sleep(pause)

    async def _one_run(self, cache: Cache) -> float | None:
        """Since when it was healthy, once it has ended; None: it never was."""
        state, name = self.state, self.host.name
        if state.engine is None or not state.engine.alive:
            engine = await self._started(cache)
            if engine is None:
                return None
        else:
            engine = state.engine  # the agent before has started it
        if not state.serving:
            state.healthy_since = await self._healthy_since(engine)
            if state.healthy_since:
                log.info("engine %s is healthy after %.1f s", name, state.healthy_since - state.began)
                state.begin_epoch()
        code = await engine.wait()
        cache.forget()  # now, and not when the next is healthy: it may have been given files by then
        state.serving = False
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        when = "" if state.healthy_since else " before it was healthy"
        log.error("engine %s %s%s. Its last words:", name, how, when)
        for line in engine.tail.text().splitlines():
            log.error("engine %s: %s", name, line)
        return state.healthy_since

    async def _started(self, cache: Cache) -> EngineProcess | None:
        """None: it cannot be, and was said."""
        name = self.host.name
        if await self.watch.taken():
            log.error(
                "something else listens at %s: stop it, or give the engine another --port", self.watch.url
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
            log.error("engine %s cannot be started: %s", name, error)
            return None
        self.state.engine, self.state.began, self.state.healthy_since = engine, time.monotonic(), None
        log.info("engine %s starts as process %d", name, engine.pid)
        return engine

    async def _healthy_since(self, engine: EngineProcess) -> float | None:
        """None: it ended, or took too long and was ended, before it ever answered."""
        deadline = time.monotonic() + self.host.start_timeout
        while engine.alive:
            if await self.watch.healthy() and engine.alive:
                return time.monotonic()
            if time.monotonic() > deadline:
                log.error("engine %s is not healthy after %.0f s", self.host.name, self.host.start_timeout)
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

"""Keeps the engine running: starts it, waits until it is healthy, and restarts it when it exits."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass

from adapters.engine_agent.engine_client import EngineWatch
from adapters.engine_agent.engine_process import EngineLaunchError, EngineProcess
from adapters.engine_agent.staging import Cache
from adapters.engine_agent.state import AgentState, HostConfig

log = logging.getLogger(__name__)

HEALTH_SECONDS = 0.25
"""Seconds between health checks of a starting engine."""
FIRST_BACKOFF_SECONDS, LAST_BACKOFF_SECONDS = 1.0, 60.0
HEALTHY_SECONDS = 300.0
"""A healthy run of this many seconds resets the backoff."""


@dataclass(slots=True)
class Backoff:
    """Seconds between restarts: from 1, doubling up to 60; reset after five healthy minutes."""

    seconds: float = FIRST_BACKOFF_SECONDS

    def after(self, healthy_for: float) -> float:
        """Seconds to wait after a run that was healthy for `healthy_for` seconds."""
        if healthy_for >= HEALTHY_SECONDS:
            self.seconds = FIRST_BACKOFF_SECONDS
        pause, self.seconds = self.seconds, min(LAST_BACKOFF_SECONDS, self.seconds * 2)
        return pause


@dataclass(slots=True)
class Supervisor:
    host: HostConfig
    state: AgentState
    watch: EngineWatch
    cache: Cache

    async def run(self) -> None:
        """Start the engine and restart it whenever it exits. Raises EngineLaunchError if its command cannot
        be executed the first time."""
        backoff = Backoff()
        while True:
            healthy_since = await self._one_run()
            if self.state.restarting_engine:
                self.state.restarting_engine = False
                continue
            pause = backoff.after(time.monotonic() - healthy_since if healthy_since else 0.0)
            log.warning("Engine %s: restarting in %.0f s", self.host.name, pause)
            await asyncio.sleep(pause)

    async def _one_run(self) -> float | None:
        """Run the engine until it exits. Return when it became healthy, or None if it never did."""
        state, name = self.state, self.host.name
        if state.engine is None or not state.engine.alive:
            engine = await self._started()
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
        self.cache.forget()  # now, because the next process may get files before it is healthy
        state.serving = False
        if state.restarting_engine:
            log.info("Engine %s: stopped for a restart", name)
            return state.healthy_since
        how = f"killed by signal {-code}" if code < 0 else f"exited with code {code}"
        when = "" if state.healthy_since else " before it became healthy"
        log.error("Engine %s: %s%s. Last output:", name, how, when)
        for line in engine.tail.text().splitlines():
            log.error("Engine %s: %s", name, line)
        return state.healthy_since

    async def _started(self) -> EngineProcess | None:
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
                self.host.command, self.host.environ, mark=str(self.cache.root), on_line=self.host.on_line
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

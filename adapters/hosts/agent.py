"""`florin engine run`: one engine, kept alive, kept known to the gateway, and drained before it ends.

Side by side run: a loop that keeps the engine's processes running (here), one that keeps the gateway
informed (`bulletin`), and the desk, where the gateway asks for files. Each start of the engine is an epoch of
its own, so that nobody believes in what an earlier one held. A gateway that is away is waited for; the engine
stays up.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from adapters.hosts.beats import BEAT_SECONDS, BEAT_TTL_MS
from adapters.hosts.bulletin import Bulletin
from adapters.hosts.desk import Desk
from adapters.hosts.drain import HURRY_SECONDS, drain
from adapters.hosts.engine_watch import EngineWatch
from adapters.hosts.life import Host, Life
from adapters.hosts.link import Link, LinkDownError, LinkRefusedError
from adapters.hosts.security import HostSecurity
from adapters.hosts.staging import Cache, StageError
from adapters.hosts.supervisor import Backoff, EngineProcess, StartError, end_marked
from adapters.tls import watch as watch_files

log = logging.getLogger(__name__)

HEALTH_SECONDS = 0.25
"""Between looks at an engine that is starting."""


class Exit(IntEnum):
    DONE = 0
    """Drained and stopped, as asked."""
    FAILED = 1
    """It could not begin: the name is taken, the key refused, the command or the cache directory unusable."""


class NameTakenError(Exception):
    """The gateway lets no agent of this name, or with this key, begin."""


@dataclass(slots=True)
class Agent:
    host: Host
    life: Life
    link: Link
    watch: EngineWatch
    security: HostSecurity = field(default_factory=HostSecurity)

    async def run(self) -> Exit:
        """Until it is asked to stop, or cannot begin."""
        cache = Cache(self.host.cache_dir.absolute(), self.host.cache_bytes, self.link, self.watch.listed)
        desk = Desk(cache, self._state, tls=self.security.server)
        try:
            await asyncio.to_thread(cache.open)
            if left := await asyncio.to_thread(end_marked, str(cache.root)):
                log.warning("ended %d processes that an earlier engine had left behind", left)
            await desk.open(self.host.agent_host, self.host.agent_port)
            await self._unless_asked_to_stop(self._take_name())
            if not self.life.asked.is_set():
                await self._live(cache, Bulletin(self.host, self.life, self.link, self.watch, cache, desk))
        except (StageError, StartError, NameTakenError) as error:
            log.error("%s", error)
            return Exit.FAILED
        except OSError as error:
            log.error("The agent cannot start: %s.", error)
            return Exit.FAILED
        finally:
            await cache.drop()
            await desk.close()
            cache.close()
        return Exit.DONE

    async def _live(self, cache: Cache, bulletin: Bulletin) -> None:
        """Raises StartError when the engine's command cannot be executed."""
        keeping = asyncio.create_task(self._keep(cache), name="engine")
        telling = asyncio.create_task(bulletin.run(), name="heartbeat")
        renewing = asyncio.create_task(watch_files(self.security.renewables), name="certificates")
        asked = asyncio.create_task(self.life.asked.wait(), name="stop")
        try:
            await asyncio.wait({keeping, telling, asked}, return_when=asyncio.FIRST_COMPLETED)
            for work in (keeping, telling):
                if work.done():
                    work.result()  # raises what ended it: neither ends by itself
            keeping.cancel()
            await drain(self.life, self.link, self.watch, self.host)
        finally:
            for task in (keeping, telling, renewing, asked):
                task.cancel()
            await asyncio.gather(keeping, telling, renewing, asked, return_exceptions=True)
            if self.life.engine and self.life.engine.alive:
                await self.life.engine.stop(HURRY_SECONDS)
            await bulletin.leave()

    async def _unless_asked_to_stop(self, work: Coroutine[Any, Any, None]) -> None:
        """`work`, given up when the operator ends the agent: a gateway that hangs does not hold that up."""
        tasks = working, asked = asyncio.create_task(work), asyncio.create_task(self.life.asked.wait())
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
        until = time.monotonic() + BEAT_TTL_MS / 1000 + BEAT_SECONDS
        while not self.life.asked.is_set():
            try:
                found = await self.link.engine(self.host.name)
            except LinkRefusedError as error:
                raise NameTakenError(f"The gateway at {self.link.url} refuses: {error}") from error
            except LinkDownError as error:
                self.life.mention(f"{error} The engine starts meanwhile.")
                return
            if not found or not found.get("beat"):
                return
            if time.monotonic() > until:
                raise NameTakenError(
                    f"Engine {self.host.name} is run by another agent, at {found['agent']}, which is alive: "
                    "stop that one, or give this one another --name."
                )
            await asyncio.sleep(0.5)

    async def _keep(self, cache: Cache) -> None:
        """Start the engine, and again whenever it ends. Raises StartError when its command cannot be executed
        even the first time."""
        backoff = Backoff()
        while True:
            healthy_since = await self._one_run(cache)
            pause = backoff.after(time.monotonic() - healthy_since if healthy_since else 0.0)
            log.warning("engine %s starts again in %.0f s", self.host.name, pause)
            await asyncio.sleep(pause)

    async def _one_run(self, cache: Cache) -> float | None:
        """Since when it was healthy, once it has ended; None: it never was."""
        began, name = time.monotonic(), self.host.name
        if await self.watch.taken():
            log.error(
                "something else listens at %s: stop it, or give the engine another --port", self.watch.url
            )
            return None
        self.life.starts += 1
        try:
            engine = await EngineProcess.start(
                self.host.command, self.host.environ, mark=str(cache.root), say=self.host.say
            )
        except StartError as error:
            if self.life.starts == 1:
                raise
            log.error("engine %s cannot be started: %s", name, error)
            return None
        self.life.engine = engine
        log.info("engine %s starts as process %d", name, engine.pid)
        healthy_since = await self._healthy_since(engine)
        if healthy_since:
            log.info("engine %s is healthy after %.1f s", name, healthy_since - began)
            self.life.begin_epoch()
        code = await engine.wait()
        cache.forget()  # now, and not when the next is healthy: it may have been given files by then
        self.life.serving = False
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        when = "" if healthy_since else " before it was healthy"
        log.error("engine %s %s%s. Its last words:", name, how, when)
        for line in engine.tail.text().splitlines():
            log.error("engine %s: %s", name, line)
        return healthy_since

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
        life = self.life
        return {
            "name": self.host.name,
            "epoch": life.epoch,
            "engine": "up" if life.up else "down",
            "stopping": life.stopping,
            "starts": life.starts,
        }

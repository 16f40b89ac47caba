"""Injects the scheduled faults into a cluster. Each fault ends with its repair: the process is restarted, the
network restored, a lost registry restored from a gateway."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final

from deploy.demo.gateway import GatewayError
from loadtests.chaos.engines import Engine
from loadtests.chaos.proxy import Proxy
from loadtests.chaos.schedule import Event
from loadtests.chaos.world import ChaosCluster, GatewayHost

SLOW_S: Final = 0.3
RESTORES: Final = 60
CLOCK_STEPS: Final = (7200, -3600)
"""Seconds: as an operator saw them happen."""

Fault = Callable[[ChaosCluster, Event], AbstractAsyncContextManager[None]]


@asynccontextmanager
async def _engine_kill(world: ChaosCluster, event: Event) -> AsyncIterator[None]:
    engine, proxy = _engine(world, event)
    await asyncio.to_thread(engine.kill)
    await proxy.cut()
    yield
    await asyncio.to_thread(engine.start)
    await proxy.start()


@asynccontextmanager
async def _engine_stop(world: ChaosCluster, event: Event) -> AsyncIterator[None]:
    engine, _ = _engine(world, event)
    engine.signal(signal.SIGSTOP)
    yield
    engine.signal(signal.SIGCONT)


@asynccontextmanager
async def _engine_hang(world: ChaosCluster, event: Event) -> AsyncIterator[None]:
    engine, _ = _engine(world, event)
    await asyncio.to_thread(engine.hang, True)
    yield
    await asyncio.to_thread(engine.hang, False)


def _cut(proxy: Callable[[ChaosCluster, Event], Proxy]) -> Fault:
    @asynccontextmanager
    async def fault(world: ChaosCluster, event: Event) -> AsyncIterator[None]:
        cut_proxy = proxy(world, event)
        await cut_proxy.cut()
        yield
        await cut_proxy.start()

    return fault


def _hole(proxy: Callable[[ChaosCluster, Event], Proxy]) -> Fault:
    @asynccontextmanager
    async def fault(world: ChaosCluster, event: Event) -> AsyncIterator[None]:
        silent_proxy = proxy(world, event)
        silent_proxy.silence()
        yield
        silent_proxy.speak()

    return fault


def _slow(proxy: Callable[[ChaosCluster, Event], Proxy]) -> Fault:
    @asynccontextmanager
    async def fault(world: ChaosCluster, event: Event) -> AsyncIterator[None]:
        slow_proxy = proxy(world, event)
        slow_proxy.delay = SLOW_S
        yield
        slow_proxy.delay = 0.0

    return fault


@asynccontextmanager
async def _worker_kill(world: ChaosCluster, event: Event) -> AsyncIterator[None]:
    house, number = _seat(world, event)
    crew = house.crew()
    if crew:  # otherwise its replacement is still starting
        crew[min(number, len(crew) - 1)].kill()
    yield
    while len(house.crew()) < house.workers:  # noqa: ASYNC110 - another process starts it
        await asyncio.sleep(0.05)


@asynccontextmanager
async def _worker_stop(world: ChaosCluster, event: Event) -> AsyncIterator[None]:
    house, number = _seat(world, event)
    crew = house.crew()
    victims = crew[min(number, len(crew) - 1) :][:1]
    for victim in victims:
        victim.suspend()
    yield
    for victim in victims:
        victim.resume()


@asynccontextmanager
async def _gateway_kill(world: ChaosCluster, event: Event) -> AsyncIterator[None]:
    house = world.houses[event.victim]
    await asyncio.to_thread(house.kill)
    yield
    await house.start()


@asynccontextmanager
async def _redis_kill(world: ChaosCluster, event: Event) -> AsyncIterator[None]:
    del event
    primary = world.valkeys.primary
    await asyncio.to_thread(primary.kill)
    yield
    await asyncio.to_thread(primary.start)


@asynccontextmanager
async def _redis_flushed(world: ChaosCluster, event: Event) -> AsyncIterator[None]:
    del event
    await asyncio.to_thread(world.valkeys.primary.client.flushall)
    yield
    await restore(world)


@asynccontextmanager
async def _redis_failover(world: ChaosCluster, event: Event) -> AsyncIterator[None]:
    """The replica is disconnected and then the primary dies, which loses the writes acknowledged in
    between."""
    del event
    pair = world.valkeys
    await asyncio.to_thread(pair.replica.promote)
    yield
    await asyncio.to_thread(pair.fail_over)
    for house in world.houses:
        house.redis.upstream = ("127.0.0.1", pair.primary.port)
        house.redis.drop()
    await restore(world)
    await asyncio.to_thread(pair.repair)


async def restore(world: ChaosCluster) -> None:
    """Restore a lost registry from a gateway, as an operator would."""
    first = world.houses[0]
    last = ""
    for _ in range(RESTORES):
        try:
            status = await first.call("GET", "/admin/v1/registry")
            if status["status"] == "ok":
                return
            await first.call("POST", "/admin/v1/registry/rewrite", {"found": status["found"]})
        except GatewayError as error:  # it has yet to notice the loss
            last = str(error)
        await asyncio.sleep(0.5)
    raise RuntimeError(f"the registry cannot be restored: {last}")


@asynccontextmanager
async def _postgres_kill(world: ChaosCluster, event: Event) -> AsyncIterator[None]:
    del event
    await asyncio.to_thread(world.postgres.kill)
    yield
    await asyncio.to_thread(world.postgres.start)


def _pid_stop(pid: Callable[[ChaosCluster], int]) -> Fault:
    @asynccontextmanager
    async def fault(world: ChaosCluster, event: Event) -> AsyncIterator[None]:
        del event
        victim = pid(world)
        os.kill(victim, signal.SIGSTOP)
        yield
        os.kill(victim, signal.SIGCONT)

    return fault


def _postgres_stop() -> Fault:
    """Stop all processes: the server has one child per connection."""

    @asynccontextmanager
    async def fault(world: ChaosCluster, event: Event) -> AsyncIterator[None]:
        del event
        stopped = world.postgres.processes()
        for process in stopped:
            process.suspend()
        yield
        for process in reversed(stopped):
            process.resume()

    return fault


@asynccontextmanager
async def _disk_full(world: ChaosCluster, event: Event) -> AsyncIterator[None]:
    disk = world.houses[event.victim].disk
    await asyncio.to_thread(disk.fill)
    yield
    await asyncio.to_thread(disk.free)


@asynccontextmanager
async def _disk_slow(world: ChaosCluster, event: Event) -> AsyncIterator[None]:
    shim = world.houses[event.victim].shim
    assert shim is not None, "see World.skipped"
    shim.say(sync_s=0.2 + event.detail, write_s=0.005)
    yield
    shim.say()


@asynccontextmanager
async def _clock_step(world: ChaosCluster, event: Event) -> AsyncIterator[None]:
    """The repair steps the clock back, which is a step too."""
    shim = world.houses[event.victim].shim
    assert shim is not None, "see World.skipped"
    shim.say(clock_s=CLOCK_STEPS[int(event.detail * len(CLOCK_STEPS))])
    yield
    shim.say()


FAULTS: Final[dict[str, Fault]] = {
    "engine-kill": _engine_kill,
    "engine-stop": _engine_stop,
    "engine-hang": _engine_hang,
    "engine-cut": _cut(lambda world, event: world.proxies[event.victim]),
    "engine-hole": _hole(lambda world, event: world.proxies[event.victim]),
    "engine-slow": _slow(lambda world, event: world.proxies[event.victim]),
    "worker-kill": _worker_kill,
    "worker-stop": _worker_stop,
    "gateway-kill": _gateway_kill,
    "redis-kill": _redis_kill,
    "redis-stop": _pid_stop(lambda world: world.valkeys.primary.pid),
    "redis-cut": _cut(lambda world, event: _some(world, event).redis),
    "redis-slow": _slow(lambda world, event: _some(world, event).redis),
    "redis-flushed": _redis_flushed,
    "redis-failover": _redis_failover,
    "postgres-kill": _postgres_kill,
    "postgres-stop": _postgres_stop(),
    "postgres-cut": _cut(lambda world, event: _some(world, event).postgres),
    "disk-full": _disk_full,
    "disk-slow": _disk_slow,
    "clock-step": _clock_step,
}
"""Faults by their names in `schedule.KINDS`."""


def _engine(world: ChaosCluster, event: Event) -> tuple[Engine, Proxy]:
    return world.engines.all[event.victim], world.proxies[event.victim]


def _seat(world: ChaosCluster, event: Event) -> tuple[GatewayHost, int]:
    """The gateway and the index of its worker."""
    workers = world.houses[0].workers
    return world.houses[event.victim // workers], event.victim % workers


def _some(world: ChaosCluster, event: Event) -> GatewayHost:
    """The gateway whose network is cut."""
    return world.houses[int(event.detail * len(world.houses))]

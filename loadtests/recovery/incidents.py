"""Each incident of docs/incidents.md: it strikes a site under load, its cause ends, and clients recover."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import httpx2
import psutil

from loadtests.chaos import shim
from loadtests.chaos.proxy import Proxy
from loadtests.chaos.world import Disk
from loadtests.recovery.clients import BROKEN, PAUSE_S, Asked, Clients, Stream
from loadtests.recovery.site import COLD, Site, engines_at

SETTLE_S: Final = 2.0
"""From the incident until its cause ends, once it has been noticed."""


class CannotError(Exception):
    """Not on this machine; the message says why."""


@dataclass
class Outcome:
    """What clients saw of one incident."""

    asked: int
    failed: Counter[str]
    """How → how many."""
    seconds: dict[str, list[float]]
    """What was measured → how long each took."""


def outcome(clients: Clients, **seconds: float) -> Outcome:
    failed = Counter(exchange.code for exchange in clients.asked if not exchange.ok)
    return Outcome(len(clients.asked), failed, {name: [duration] for name, duration in seconds.items()})


async def registry_lost(directory: Path) -> Outcome:
    async with Site(directory) as site:
        clients = site.clients()
        async with clients.asking():
            await clients.answered(50)
            await asyncio.to_thread(site.valkey.client.flushall)
            await site.ready("degraded", 0.0)
            await clients.answered(50)
            registry = await site.call("GET", "registry")
            await site.call("POST", "registry/rewrite", {"found": registry["found"]})
            loaded, sure = await _caught_up(site, clients)
            await clients.answered(50)
    return outcome(clients, restored_to_cold_load=loaded, restored_to_no_warning=sure)


async def redis_away(directory: Path) -> Outcome:
    async with Site(directory) as site:
        await asyncio.to_thread(site.gateway.stop)
        await asyncio.to_thread(site.valkey.kill)
        began = time.monotonic()
        await site.start(site.gateway)
        clients = site.clients()
        async with clients.asking():
            await clients.answered(1)
            started = time.monotonic() - began
            await clients.answered(50)
            await asyncio.to_thread(site.valkey.start)
            loaded, sure = await _caught_up(site, clients)
            await clients.answered(50)
    return outcome(clients, start_to_answer=started, redis_to_cold_load=loaded, redis_to_no_warning=sure)


async def _caught_up(site: Site, clients: Clients) -> tuple[float, float]:
    """Seconds from now until cold loads are made again, and until every worker follows the registry."""
    now = time.monotonic()
    return await asyncio.gather(clients.loaded(now, COLD), site.ready("ok", now))


async def engine_hung(directory: Path) -> Outcome:
    """The only engine that holds the adapter, while another idles."""
    async with Site(directory) as site:
        clients = site.clients()
        async with clients.asking(8):
            await clients.answered(50)
            holder = clients.asked[-1].engine
            stopped = time.monotonic()
            await asyncio.to_thread(site.engines[holder].act, "stop-core")
            elsewhere = await _answered_by(clients, lambda name: name != holder, stopped)
            await clients.answered(100)
            resumed = time.monotonic()
            await asyncio.to_thread(site.engines[holder].act, "continue-core")
            used = await site.ready("ok", resumed)
            await clients.answered(50)
    longest = max(exchange.ended - exchange.began for exchange in clients.asked)
    return outcome(clients, hung_to_elsewhere=elsewhere, longest_wait=longest, resumed_to_in_use=used)


async def only_engine_hung(directory: Path) -> Outcome:
    async with Site(directory, engines=1) as site:
        clients = site.clients()
        async with clients.asking():
            await clients.answered(50)
            await asyncio.to_thread(site.engines["e0"].act, "stop-core")
            await clients.heard("engine_hung")
            await asyncio.sleep(SETTLE_S)
            resumed = time.monotonic()
            await asyncio.to_thread(site.engines["e0"].act, "continue-core")
            back = await clients.well(resumed)
    return outcome(clients, resumed_to_answer=back)


async def engine_died(directory: Path) -> Outcome:
    """In the middle of streams; the other engine has not loaded their adapter yet."""
    async with Site(directory) as site:
        with engines_at(site, event_delay=_EVENT_S):
            clients, streams = site.clients(), [Stream() for _ in range(8)]
            async with asyncio.TaskGroup() as group:
                for stream in streams:
                    group.create_task(clients.stream(stream, 60))
                async with asyncio.timeout(30):
                    while any(len(stream.times) < 20 for stream in streams):  # noqa: ASYNC110 - they tell
                        await asyncio.sleep(PAUSE_S)
                (holder,) = {stream.engine for stream in streams}
                site.engines.pop(holder).kill()
        failed = Counter("broken_stream" for stream in streams if not stream.whole)
    return Outcome(len(streams), failed, {"pause_in_the_stream": [s.longest_pause for s in streams]})


_EVENT_S: Final = 0.05


async def disk_full(directory: Path) -> Outcome:
    disk = Disk(directory / "disk")
    try:
        if not disk.small:
            raise CannotError("mounting a small file system needs root")
        async with Site(directory, state=disk.path) as site:
            clients = site.clients()
            async with clients.asking():
                await clients.answered(50)
                full = time.monotonic()
                await asyncio.to_thread(disk.fill)
                await clients.heard("metering_unavailable")
                refused = min(exchange.ended for exchange in clients.asked if exchange.code) - full
                await asyncio.sleep(SETTLE_S)
                room = time.monotonic()
                await asyncio.to_thread(disk.free)
                back = await clients.well(room)
        slowest = max(exchange.ended - exchange.began for exchange in clients.asked)
        return outcome(clients, full_to_refusal=refused, longest_wait=slowest, room_to_answer=back)
    finally:
        disk.close()


_CRASHES: Final = 5
"""How often each worker crashes: after the last, the parent waits for eight seconds."""


async def crash_loop(directory: Path) -> Outcome:
    async with Site(directory) as site:
        clients = site.clients()
        async with clients.asking():
            await clients.answered(50)
            dead = set[psutil.Process]()
            for _ in range(_CRASHES):
                for worker in await _crew(site, dead, 2):
                    worker.kill()
                    dead.add(worker)
                killed = time.monotonic()
            await clients.heard("no_worker")
            await _crew(site, dead, 1)
            seen = time.monotonic()
            back = await clients.well(seen)
    slowest = max(exchange.ended - exchange.began for exchange in clients.asked)
    seconds = {
        "longest_wait": slowest,
        "worker_to_answer": back,
        "last_crash_to_answer": seen + back - killed,
    }
    return outcome(clients, **seconds)


async def clock_steps(directory: Path) -> Outcome:
    library = shim.build(directory)
    if library is None:
        raise CannotError("there is no C compiler")
    clock = shim.Shim(library, directory / "shim")
    async with Site(directory, settings=clock.environment) as site:
        clients = site.clients()
        async with clients.asking():
            await clients.answered(50)
            for step in (7200, -3600, 7200):
                clock.say(clock_s=step)
                await clients.answered(100)
            await site.ready("degraded", 0.0)
            clock.say()
            right = await site.ready("ok", time.monotonic())
    return outcome(clients, right_to_no_warning=right)


async def rolling_restart(directory: Path) -> Outcome:
    """Restart two gateways in turn, behind a balancer that retries nothing."""
    async with Site(directory, gateways=2) as site:
        ports = [int(gateway.url.rpartition(":")[2]) for gateway in site.gateways]
        proxy = Proxy(("127.0.0.1", ports[0]))
        await proxy.start()
        balancing = asyncio.create_task(_balance(proxy, ports))
        clients = site.clients(f"http://127.0.0.1:{proxy.port}")
        stops, starts = list[float](), list[float]()
        try:
            async with clients.asking(6):
                await clients.answered(100)
                for gateway in site.gateways:
                    began = time.monotonic()
                    await asyncio.to_thread(gateway.stop)
                    stops.append((ended := time.monotonic()) - began)
                    await site.start(gateway)
                    starts.append(time.monotonic() - ended)
                    await clients.answered(100)
        finally:
            balancing.cancel()
            await asyncio.gather(balancing, return_exceptions=True)
            await proxy.cut()
    restart = outcome(clients)
    return replace(restart, seconds={"signal_to_end": stops, "start_to_listening": starts})


async def _balance(proxy: Proxy, ports: list[int]) -> None:
    """Ten times a second: to the next gateway whose /readyz says 200."""
    async with httpx2.AsyncClient(timeout=5, trust_env=False) as http:
        while True:
            for port in ports:
                with contextlib.suppress(httpx2.HTTPError):
                    url = f"http://127.0.0.1:{port}/readyz"
                    if (await http.get(url, headers={"connection": "close"})).status_code == 200:
                        proxy.upstream = ("127.0.0.1", port)
                await asyncio.sleep(0.1)


_RUNS: Final = 16
_CAPACITY: Final = _RUNS / (2 * 0.25)
"""Answers a second, by the engine's own pace: so many at a time, of two tokens."""


async def overload(directory: Path) -> Outcome:
    """Three times what the engine can do for ten seconds, then half of it."""
    settings = {"FLORIN_QUEUE_TIMEOUT": "2"}
    async with Site(directory, engines=1, engine={"max_num_seqs": _RUNS}, settings=settings) as site:
        with engines_at(site, event_delay=0.25):
            clients = site.clients()
            async with asyncio.TaskGroup() as group:
                await _at(clients, group, 3 * _CAPACITY, 10.0)
                fell = time.monotonic()
                await _at(clients, group, _CAPACITY / 2, 15.0)
    refused = [exchange.began for exchange in clients.asked if exchange.code == "overloaded"]
    if not refused:
        raise CannotError("nothing was refused")
    return outcome(clients, load_falls_to_last_refusal=max(0.0, max(refused) - fell))


async def _at(clients: Clients, group: asyncio.TaskGroup, rate: float, seconds: float) -> None:
    """Requests come whatever becomes of those before."""

    async def ask() -> None:
        clients.asked.append(await clients.ask())

    began, sent = time.monotonic(), 0
    while (passed := time.monotonic() - began) < seconds:
        for _ in range(int(passed * rate) - sent):
            sent += 1
            group.create_task(ask())
        await asyncio.sleep(0.005)


async def _answered_by(clients: Clients, those: Callable[[str], bool], since: float) -> float:
    """Seconds from `since` to the first answer of such an engine."""

    def found() -> list[Asked]:
        return [
            exchange
            for exchange in clients.asked
            if exchange.ok and exchange.ended > since and those(exchange.engine)
        ]

    async with asyncio.timeout(120):
        while not found():  # noqa: ASYNC110 - see `Clients.asking`
            await asyncio.sleep(PAUSE_S)
    return min(exchange.ended for exchange in found()) - since


async def _crew(site: Site, dead: set[psutil.Process], count: int) -> set[psutil.Process]:
    """As soon as there are so many workers that are not those."""
    async with asyncio.timeout(60):
        while len(crew := site.workers() - dead) < count:  # noqa: ASYNC110 - another process starts them
            await asyncio.sleep(0.01)
    return crew


@dataclass(frozen=True)
class Incident:
    strike: Callable[[Path], Coroutine[Any, Any, Outcome]]
    """In an empty directory. Raises CannotError."""
    costs: frozenset[str] = frozenset()
    """How requests may fail meanwhile."""


INCIDENTS: Final = {
    "registry-lost": Incident(registry_lost),
    "redis-away": Incident(redis_away),
    "engine-hung": Incident(engine_hung),
    "only-engine-hung": Incident(only_engine_hung, frozenset({"engine_hung"})),
    "engine-died": Incident(engine_died),
    "disk-full": Incident(disk_full, frozenset({"metering_unavailable"})),
    "crash-loop": Incident(crash_loop, frozenset({"no_worker", BROKEN})),
    "clock-steps": Incident(clock_steps),
    "rolling-restart": Incident(rolling_restart),
    "overload": Incident(overload, frozenset({"overloaded"})),
}

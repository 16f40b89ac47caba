"""`python -m loadtests.scale.fleet`: what a large fleet costs behind mock engines on real sockets: start-up,
idling, requests, changes of the registry, the death of a part of the engines, and what operators look at.

Requests choose among some of the adapters by Zipf's law, so that many find theirs nowhere. The gateways share
one embedded Valkey.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import secrets
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx2
import orjson
import redis
from rich.console import Console

from adapters.model import Adapter, Engine, SlotState, dump
from adapters.placement.planned_fleet import FleetSnapshot, PlacedVersion, PlannedEngine, PlannedVersion
from adapters.placement.planner import plan
from adapters.store.embedded import EmbeddedValkey
from adapters.store.protocol.registry import Change
from adapters.store.redis import RedisStore
from gateway.serving.server import raise_file_limit
from loadtests import decisions
from loadtests.overhead import cpu
from loadtests.overhead.contestants import ThinMockProcess
from loadtests.scale import churn, steady
from loadtests.scale.gateway import ScaledGateway
from loadtests.scale.registry import BASE, SLOTS, Registry, fill

CALLED = 4_000
"""Adapters that requests choose from; the others are only registered."""
PAGES = {
    "engine list": "/admin/v1/engines",
    "placement": "/admin/v1/placement",
    "doctor": "/admin/v1/doctor",
    "metrics": "/metrics",
    "console": "/console/fleet",
}
MARKS = 10
"""Changes whose arrival at every gateway is timed."""
progress = Console(stderr=True, style="dim")


class Gateway(ScaledGateway):
    """On all cores."""

    pinned = False


@dataclass(slots=True)
class Site:
    """What runs."""

    registry: Registry
    store: EmbeddedValkey
    gateways: list[ScaledGateway]
    engines: list[ThinMockProcess]
    operator: str

    @property
    def pids(self) -> list[int]:
        return [pid for gateway in self.gateways for pid in gateway.pids]

    def counters(self) -> dict[str, float]:
        """Counts of Redis since its start, and processor times in seconds."""
        with redis.Redis.from_url(self.store.url) as client:
            info = client.info("all")
        return {
            **{n.removeprefix("cmdstat_"): s["calls"] for n, s in info.items() if n.startswith("cmdstat_")},
            "commands": info["total_commands_processed"],
            "bytes in": info["total_net_input_bytes"],
            "bytes out": info["total_net_output_bytes"],
            "cpu Redis": cpu.seconds(self.store.pid or 0),
            "cpu gateways": cpu.total(self.pids),
            "cpu engines": cpu.total(mock.pid for mock in self.engines),
        }

    def rates(self, since: Mapping[str, float], seconds: float) -> dict[str, float]:
        now = self.counters()
        rates = {name: round((value - since.get(name, 0)) / seconds, 3) for name, value in now.items()}
        return {name: rate for name, rate in sorted(rates.items(), key=lambda pair: -pair[1]) if rate}


def main() -> int:
    options = _options()
    raise_file_limit()
    figures: dict[str, Any] = {
        "machine": cpu.machine(),
        "options": {k: str(v) for k, v in vars(options).items()},
    }

    def record(name: str, value: Any) -> None:
        figures[name] = value
        progress.print(f"{name}: {value}")
        if options.json:
            options.json.write_bytes(orjson.dumps(figures, option=orjson.OPT_INDENT_2))

    record("options", {name: str(value) for name, value in vars(options).items()})
    record("decision µs", _decisions(options.engines))
    record("planner", _planner(options.engines))
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="florin-fleet-")))
        engine = {"base": BASE, "max_loras": SLOTS, "max_cpu_loras": 4 * SLOTS, "max_lora_rank": 64}
        counts = [len(range(n, options.engines, options.processes)) for n in range(options.processes)]
        mocks = [stack.enter_context(ThinMockProcess(**engine, count=count)) for count in counts]
        store = stack.enter_context(EmbeddedValkey(directory / "store", fsync="everysec"))
        registry = asyncio.run(_fill(store.url, options, mocks))
        operator = secrets.token_hex(16)
        site = Site(registry, store, [], mocks, operator)
        record("Redis MB, registry", _redis_megabytes(store))
        for number in range(options.gateways):
            gateway = Gateway(
                directory / f"gateway-{number}" / "state",
                registry.customers[0],
                FLORIN_REDIS_URL=store.url,
                FLORIN_OPERATOR_KEY=operator,
                FLORIN_WORKERS=str(options.workers),
                FLORIN_LOG_LEVEL="warning",
                FLORIN_SEPARATE_LEDGERS="true",
            )
            site.gateways.append(stack.enter_context(gateway))
        record("start", [_started(gateway) for gateway in site.gateways])
        time.sleep(options.settle)
        record("idle", _phase(site, options))
        record("resident", _phase(site, options, customers=SLOTS))
        record("cold", _phase(site, options, customers=CALLED))
        record("cold, with changes", _phase(site, options, customers=CALLED, changes=options.changes))
        record("pages", _pages(site))
        record("memory", _memory(site))
        record("feed lag s", asyncio.run(_feed_lags(site)))
        record("death", _death(site, options))
        record("Redis MB", _redis_megabytes(store))
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m loadtests.scale.fleet", description=__doc__)
    parser.add_argument("--engines", type=int, default=500)
    parser.add_argument("--processes", type=int, default=10, help="that play the engines, as racks do")
    parser.add_argument("--adapters", type=int, default=50_000)
    parser.add_argument("--tenants", type=int, default=2_000)
    parser.add_argument("--gateways", type=int, default=4)
    parser.add_argument("--workers", type=int, default=1, help="of each gateway")
    parser.add_argument("--rate", type=float, default=200.0, help="requests per second, over all gateways")
    parser.add_argument("--changes", type=float, default=100.0, help="registry changes per second")
    parser.add_argument("--settle", type=float, default=20.0, help="seconds before the first measurement")
    parser.add_argument("--seconds", type=float, default=20.0, help="length of a measurement")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to this file")
    return parser.parse_args()


async def _fill(url: str, options: argparse.Namespace, mocks: Sequence[ThinMockProcess]) -> Registry:
    store = RedisStore(url)
    registry = await fill(store, options.adapters, options.tenants, mocks[0].url, customers=CALLED)
    now = time.time_ns() // 1000
    ports = [port for mock in mocks for port in mock.ports or [mock.port]][1:]
    engines = [
        Engine(f"mock-{number}", f"http://127.0.0.1:{port}", BASE, "mock", SLOTS, 64, registered=now)
        for number, port in enumerate(ports, 2)
    ]
    await store.commit([Change("engine", engine.name, dump(engine)) for engine in engines])
    await store.close()
    return registry


# -- without a gateway


def _decisions(engines: int) -> dict[str, float]:
    """Processor time of one."""
    fleet = decisions.fleet(engines)
    return {what: round(decisions.microseconds(fleet, what), 1) for what in ("held", "cold")}


def _planner(engines: int) -> dict[str, float]:
    """Processor time of one plan for engines whose memory is full, with a thousand adapters that two engines
    should hold."""
    names = (f"version-{number}" for number in itertools.count())
    states = [SlotState.RESIDENT] * SLOTS + [SlotState.CACHED] * 3 * SLOTS
    planned = tuple(
        PlannedEngine(
            f"engine-{number}", SLOTS, 64, f"host-{number // 8}",
            held={next(names): PlacedVersion(state, idle=100) for state in states},
        )
        for number in range(engines)
    )  # fmt: skip
    placed = [name for engine in planned for name in engine.held]
    versions = tuple(PlannedVersion(name, min_replicas=2 * (n < 1000)) for n, name in enumerate(placed))
    began = time.process_time()
    moves = plan(FleetSnapshot(planned, versions))
    return {"versions placed": len(placed), "moves": len(moves), "seconds": time.process_time() - began}


# -- with gateways


def _started(gateway: ScaledGateway) -> dict[str, float]:
    return {"seconds": round(gateway.seconds, 2), "cpu s": round(cpu.total(gateway.pids), 2)}


def _phase(site: Site, options: argparse.Namespace, customers: int = 0, changes: float = 0) -> dict[str, Any]:
    """The counters per second, and what clients saw. The first `customers` ask, by Zipf's law."""
    phase: dict[str, Any] = {}
    before, begun = site.counters(), time.perf_counter()
    with ExitStack() as stack:
        if changes:
            stack.enter_context(churn.changing(site.store.url, site.registry, changes))
        if customers:
            phase["clients"] = _clients(site, options, customers)
        else:
            time.sleep(options.seconds)
    return phase | {"per second": site.rates(before, time.perf_counter() - begun)}


def _clients(site: Site, options: argparse.Namespace, customers: int) -> dict[str, Any]:
    """The same rate at each gateway, meanwhile."""
    weights = [(1 + place) ** -0.9 for place in range(customers)]
    processes = []
    for gateway in site.gateways:
        rate = options.rate / len(site.gateways)
        asking = site.registry.customers[:customers]
        job = steady.Job(gateway.port, asking, rate, options.seconds, gateway.pids, weights=weights)
        process = subprocess.Popen(
            [sys.executable, "-m", "loadtests.scale.steady"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert process.stdin
        process.stdin.write(orjson.dumps(asdict(job)))
        process.stdin.close()
        processes.append(process)
    results = []
    for process in processes:
        assert process.stdout
        results.append(orjson.loads(process.stdout.read()))
        process.wait()
    return {
        "answers": sum(result["answers"] for result in results),
        "errors": dict(sum((Counter(result["errors"]) for result in results), Counter[str]())),
        "p50 ms": [round(result["p50"], 1) for result in results],
        "p99 ms": [round(result["p99"], 1) for result in results],
    }


async def _feed_lags(site: Site) -> dict[str, float]:
    """From the commit of an adapter until every gateway shows it. With several workers to a gateway, the
    slowest of those that were asked."""
    store, lags = RedisStore(site.store.url), []
    operator = {"authorization": f"Bearer {site.operator}"}
    async with httpx2.AsyncClient(headers=operator, timeout=30) as client:
        for number in range(MARKS):
            version = site.registry.versions[-1 - number]
            name = f"{version.tenant}/marked-{number}"
            adapter = Adapter(name, live=None, latest=0)
            await store.commit([Change("adapter", name, dump(adapter))])
            begun = time.perf_counter()
            urls = [f"http://127.0.0.1:{g.port}/admin/v1/adapters/{name}" for g in site.gateways]
            while urls:
                urls = [url for url in urls if (await client.get(url)).status_code != 200]
            lags.append(time.perf_counter() - begun)
            await asyncio.sleep(0.2)
    await store.close()
    return {"median": sorted(lags)[len(lags) // 2], "most": max(lags)}


def _pages(site: Site) -> dict[str, dict[str, float]]:
    """What operators look at, from the first gateway: kilobytes, processor time, and seconds."""
    gateway = site.gateways[0]
    pages = {}
    headers = {"authorization": f"Bearer {site.operator}"}
    with httpx2.Client(base_url=f"http://127.0.0.1:{gateway.port}", timeout=600, headers=headers) as client:
        client.post("/console/sign-in", data={"key": site.operator})
        for name, path in PAGES.items():
            before, begun = cpu.total(gateway.pids), time.perf_counter()
            answer = client.get(path, follow_redirects=True)
            pages[name] = {
                "status": answer.status_code,
                "kB": len(answer.content) / 1000,
                "cpu s": round(cpu.total(gateway.pids) - before, 2),
                "seconds": round(time.perf_counter() - begun, 2),
            }

    return pages


def _death(site: Site, options: argparse.Namespace) -> dict[str, Any]:
    """A process that plays a part of the engines is killed while requests come."""
    with ThreadPoolExecutor(1) as thread:
        clients = thread.submit(_clients, site, options, CALLED)
        time.sleep(options.seconds / 4)
        site.engines.pop().kill()
        return clients.result()


def _redis_megabytes(store: EmbeddedValkey) -> float:
    with redis.Redis.from_url(store.url) as client:
        used: int = client.info("memory")["used_memory"]
    return round(used / 1e6, 1)


def _memory(site: Site) -> dict[str, Any]:
    """Megabytes of memory, what is shared divided among those that share it."""
    return {
        "gateways": [[round(_pss(pid) / 1e6) for pid in gateway.pids] for gateway in site.gateways],
        "engines": round(sum(_pss(mock.pid) for mock in site.engines) / 1e6),
        "Redis": round(_pss(site.store.pid or 0) / 1e6),
    }


def _pss(pid: int) -> int:
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(text.partition("\nPss:")[2].split()[0]) * 1024


if __name__ == "__main__":
    sys.exit(main())

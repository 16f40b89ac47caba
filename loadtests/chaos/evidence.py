"""Gathers the final state from the ledger, the gateways, the engines, Redis and the processes."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

import httpx2
import psutil
from sqlalchemy import Engine, create_engine, func, select

from adapters.store.redis import RedisStore
from deploy.demo.gateway import GatewayError
from gateway.costs.rollups.balance import imbalances
from gateway.metering.ledger.schema import engine_hours, usage
from loadtests.chaos.checks import Limits, Record, State
from loadtests.chaos.engines import loaded
from loadtests.chaos.world import ChaosCluster, GatewayHost, family

MORE_DESCRIPTORS = 64
MORE_MEMORY = 256 * 2**20


def limits(state: State) -> Limits:
    """Limits based on the workers' initial values, warm and idle."""
    return Limits(
        max(state.descriptors.values()) + MORE_DESCRIPTORS, max(state.memory.values()) + MORE_MEMORY
    )


async def look(world: ChaosCluster, known: Collection[tuple[str, str]] = ()) -> State:
    """`known`: initial problems of the doctor. Raises GatewayError or httpx2.HTTPError while something does
    not respond."""
    names = await _engine_names(world.houses[0])
    houses = world.houses
    doctors = await asyncio.gather(*(house.call("GET", "/admin/v1/doctor") for house in houses))
    problems = {
        (diagnosis["check"], f"{diagnosis['subject']}: {diagnosis['message']}")
        for doctor in doctors
        for diagnosis in doctor["data"]
        if diagnosis["status"] == "problem"
    }
    crews = {f"gateway {house.number}": house.crew() for house in houses}
    workers = {
        f"{name} worker {i}": process for name, crew in crews.items() for i, process in enumerate(crew)
    }
    return State(
        placements={f"gateway {h.number}": await _placement(h, names) for h in houses},
        loaded={
            f"e{i}": frozenset(await asyncio.to_thread(loaded, e.port))
            for i, e in enumerate(world.engines.all)
        },
        leases=await _leases(world),
        in_flight=[line for house in houses for line in await asyncio.to_thread(_in_flight, house)],
        conditions={f"gateway {h.number}": await asyncio.to_thread(_conditions, h) for h in houses},
        problems=sorted(problems - set(known)),
        processes=_strangers(world),
        files=[name for house in houses for name in _left_over(house)],
        descriptors={name: process.num_fds() for name, process in workers.items()},
        memory={name: process.memory_info().rss for name, process in workers.items()},
    )


async def _engine_names(house: GatewayHost) -> dict[str, str]:
    """acme/support@v1 → its name on engines."""
    engine_names = {}
    for adapter in (await house.call("GET", "/admin/v1/adapters"))["data"]:
        name = adapter["adapter"]
        for version in (await house.call("GET", f"/admin/v1/adapters/{name}/versions"))["data"]:
            engine_names[f"{name}@{version['version']}"] = version["engine_name"]
    return engine_names


async def _placement(house: GatewayHost, names: Mapping[str, str]) -> dict[str, frozenset[str]]:
    engines = (await house.call("GET", "/admin/v1/placement"))["data"]
    return {
        engine["engine"]: frozenset(
            names.get(slot["version"], slot["version"].removesuffix(" (removed)"))
            for slot in engine["placements"]
            if slot["state"] in {"resident", "cached"}
        )
        for engine in engines
    }


async def _leases(world: ChaosCluster) -> dict[str, int]:
    store = RedisStore(f"redis://127.0.0.1:{world.valkeys.primary.port}/0", prefix="florin")
    try:
        engines = [f"e{number}" for number in range(len(world.proxies))]
        return {engine: sum((await store.leases(engine)).values()) for engine in engines}
    finally:
        await store.close()


def _in_flight(house: GatewayHost) -> list[str]:
    lines = metrics(house).splitlines()
    return [
        f"gateway {house.number}: {line}"
        for line in lines
        if line.startswith("florin_in_flight{") and float(line.rpartition(" ")[2])
    ]


def metrics(house: GatewayHost) -> str:
    if house.gateway is None:
        raise GatewayError("The gateway is not running.")
    answer = httpx2.get(
        f"{house.url}/metrics",
        headers={"authorization": f"Bearer {house.gateway.operator_key}"},
        timeout=30,
        trust_env=False,
    )
    return answer.raise_for_status().text


def _conditions(house: GatewayHost) -> frozenset[str]:
    answer = httpx2.get(f"{house.url}/readyz", timeout=30, trust_env=False).json()
    return frozenset(answer["conditions"])


def _strangers(world: ChaosCluster) -> list[str]:
    pids = [house.gateway.pid for house in world.houses if house.gateway is not None]
    ours = {process.pid for process in family(pids)}
    strangers = [
        f"gateway {house.number} has {len(house.crew())} of {house.workers} workers"
        for house in world.houses
        if len(house.crew()) != house.workers
    ]
    for process in psutil.process_iter(["pid", "environ", "cmdline", "status"]):
        home = (process.info["environ"] or {}).get("FLORIN_STATE_DIR", "")
        alive = process.info["status"] != psutil.STATUS_ZOMBIE
        if alive and home.startswith(f"{world.directory}/") and process.pid not in ours:
            strangers.append(
                f"orphaned process {process.pid}: {' '.join(process.info['cmdline'] or [])[:100]}"
            )
    return strangers


def _left_over(house: GatewayHost) -> list[str]:
    """Logs of dead workers, which the others close once their records are in the ledger."""
    living = {str(process.pid) for process in house.crew()}
    directory = house.disk.path / "usage"
    names = [entry.name for entry in directory.iterdir() if entry.is_dir()] if directory.is_dir() else []
    return [
        f"gateway {house.number} still has the usage log {name} of a dead worker"
        for name in sorted(names)
        if name.split("-")[0] not in living and not name.startswith(".")
    ]


async def settle(
    world: ChaosCluster,
    known: Collection[tuple[str, str]],
    judge: Callable[[State], list[str]],
    seconds: float,
) -> tuple[list[str], float]:
    """Retry until `judge` finds no violation or time is up; return the remaining violations and the time
    taken."""
    began = time.monotonic()
    while True:
        try:
            wrong = judge(await look(world, known))
        except (GatewayError, httpx2.HTTPError, psutil.Error, OSError) as error:
            wrong = [f"no response: {error!r}"[:300]]
        took = time.monotonic() - began
        if not wrong or took > seconds:
            return wrong, took
        await asyncio.sleep(0.5)


# -- the ledger


@dataclass(frozen=True, slots=True)
class LedgerContents:
    records: list[Record]
    imbalances: list[str]
    provisioned: dict[str, float]
    """Engine → seconds recorded for it."""
    late: list[str] = field(default_factory=list)
    """Gateways that still have unshipped records."""


async def read_ledger(world: ChaosCluster, seconds: float) -> LedgerContents:
    """Read the ledger once everything has been shipped and rolled up, or after `seconds`."""
    month = datetime.now(UTC).strftime("%Y-%m")
    late = [f"gateway {h.number}" for h in world.houses if not await _shipped(h, seconds)]
    with contextlib.suppress(GatewayError):
        await world.houses[0].call("GET", "/finance/v1/costs", month=month)  # triggers the roll-up
    return await asyncio.to_thread(_read, world.ledger_url, late)


async def _shipped(house: GatewayHost, seconds: float) -> bool:
    """Each worker reports only its own log, so ask several times."""
    deadline = time.monotonic() + seconds
    good = 0
    while good < 4 * house.workers:
        try:
            complete = (await house.call("GET", "/finance/v1/usage", limit="1"))["complete"]
        except GatewayError:
            complete = False
        good = good + 1 if complete else 0
        if time.monotonic() > deadline:
            return False
        if not complete:
            await asyncio.sleep(0.2)
    return True


def _read(url: str, late: list[str]) -> LedgerContents:
    engine: Engine = create_engine(url)
    u, p = usage.c, engine_hours.c
    try:
        with engine.connect() as connection:
            rows = connection.execute(
                select(
                    u.id, u.request_id, u.attempt, u.tenant, u.engine, u.outcome, u.billable,
                    u.usage_source, u.prompt_tokens, u.completion_tokens,
                )
            ).all()  # fmt: skip
            provisioned = connection.execute(
                select(p.engine, func.sum(p.provisioned_us)).group_by(p.engine)
            ).all()
            month = datetime.now(UTC).strftime("%Y-%m")
            wrong = [str(imbalance) for imbalance in imbalances(connection, month)]
    finally:
        engine.dispose()
    records = [
        Record(r[0], r[1], r[2], r[3], r[4], r[5], bool(r[6]), r[7] == "engine_final", r[8], r[9])
        for r in rows
    ]
    return LedgerContents(records, wrong, {name: int(us) / 1e6 for name, us in provisioned}, late)

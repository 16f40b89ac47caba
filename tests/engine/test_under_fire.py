"""Promise 5 on real engines: thousands of mixed requests, clients that hang up, engines and gateway workers
killed, the database away, the log shipped twice: every attempt is in the ledger once, with what was seen. Only in the long
form: tests/integration/test_metering_under_fire.py has the same on mock engines."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import shutil
import signal
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest
from sqlalchemy import create_engine, func, select

from adapters.placement.fingerprint import CONTEXTS
from adapters.placement.fingerprint import TOKENS as TOKENS_A_CONTEXT
from deploy.demo.engines import DemoEngine, Fleet
from deploy.demo.gateway import Gateway
from deploy.demo.model import DemoModel
from gateway.metering.ledger.schema import engine_probes
from gateway.serving.workers import WORKER
from loadtests.postgres import Postgres
from tests.engine.conftest import ALL
from tests.engine.crowd import TOKENS, Crowd, Seen
from tests.support.waiting import until_now

REQUESTS = 2000
WORKER_KILLS = 5
LOST_PROBES = 22 * len(CONTEXTS) * TOKENS_A_CONTEXT
"""Tokens of verifications that a killed worker takes along: the last second's, or while the database is away
all since."""
ENGINE_KILLS = 2
AWAY_SECONDS = 25
QUIET_REQUESTS = 200
SEED = 20261121
PASSING = shutil.ignore_patterns("shipped", "lock", ".*")

Record = dict[str, Any]


@dataclass
class Counters:
    """An engine process's own counts. Mutable: the last seen."""

    began: float = 0.0
    prompt: int = 0
    completion: int = 0

    def since(self, before: Counters) -> Counters:
        """What this process has counted since; all, if it is another process."""
        if self.began != before.began:
            return self
        return Counters(self.began, self.prompt - before.prompt, self.completion - before.completion)

    @classmethod
    def read(cls, url: str) -> Counters:
        text = httpx2.get(f"{url}/metrics", timeout=30, trust_env=False).text
        found = {
            name: float(value)
            for name, value in re.findall(
                r"^(process_start_time_seconds|vllm:(?:prompt|generation)_tokens_total)(?:\{[^}]*\})? (\S+)",
                text,
                re.MULTILINE,
            )
        }
        return cls(
            found["process_start_time_seconds"],
            int(found["vllm:prompt_tokens_total"]),
            int(found["vllm:generation_tokens_total"]),
        )


@dataclass
class Fire:
    """What is done to the installation while the crowd asks. Mutable: what has been done."""

    gateway: Gateway
    fleet: Fleet
    database: Postgres | None
    copies: Path
    draw: random.Random
    worker_kills: int = 0
    engine_kills: int = 0
    over: asyncio.Event = field(default_factory=asyncio.Event)

    async def kill_workers(self) -> None:
        for _ in range(WORKER_KILLS):
            await asyncio.sleep(self.draw.uniform(3, 6))
            workers = [p.pid for p in psutil.Process(self.gateway.pid).children() if is_worker(p)]
            if workers:
                os.kill(self.draw.choice(workers), signal.SIGKILL)
                self.worker_kills += 1

    async def kill_engines(self) -> None:
        for number in range(ENGINE_KILLS):
            await asyncio.sleep(self.draw.uniform(4, 8))
            engine = self.fleet.engines[(number + (self.database is not None)) % len(self.fleet.engines)]
            await asyncio.to_thread(engine.kill)
            self.engine_kills += 1
            await asyncio.to_thread(self.fleet.restart, engine.index)

    async def take_the_database_away(self) -> None:
        if self.database is not None:
            await asyncio.sleep(5)
            await asyncio.to_thread(self.database.kill)
            await asyncio.sleep(AWAY_SECONDS)
            await asyncio.to_thread(self.database.start)

    async def copy_logs(self) -> None:
        """The logs as they are now and then, to be shipped once more at the end."""
        usage = self.gateway.state_dir / "usage"
        for number in range(1000):
            if self.over.is_set():
                return
            for directory in usage.iterdir():
                if directory.name.startswith("."):  # on its way in or out
                    continue
                target = self.copies / f"again-{number}-{directory.name}"
                with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                    shutil.copytree(directory, target, ignore=PASSING, copy_function=copy_if_there)
            await asyncio.sleep(4)


def is_worker(process: psutil.Process) -> bool:
    try:
        return process.name() == WORKER
    except psutil.Error:
        return False


def copy_if_there(source: str, target: str) -> None:
    """Segments go once they are shipped."""
    with contextlib.suppress(FileNotFoundError):
        shutil.copyfile(source, target)


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest) -> Iterator[Postgres | None]:
    """None: SQLite in the state directory. Else a server of this test's own, which it may kill."""
    if request.param == "sqlite":
        yield None
        return
    server = Postgres()
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.fixture
def gateway(
    repaired_fleet: Fleet, demo_model: DemoModel, database: Postgres | None, tmp_path: Path
) -> Iterator[Gateway]:
    """`florin serve` with two workers, a process of its own, and what an operator would register."""
    settings = {
        "FLORIN_LEDGER_URL": database.url("postgres") if database else "",
        "FLORIN_WORKERS": "2",
        "FLORIN_PLACEMENT_TIMEOUT": "60",
        "FLORIN_PROBE_INTERVAL": "0.5",
        "FLORIN_LEDGER_MAINTENANCE_INTERVAL": "1",  # so that what verifications cost is written as often
        "FLORIN_PROBE_TIMEOUT": "5",
        "FLORIN_BASE_MODEL_DIRS": "/",
    }
    with Gateway(tmp_path / "state", tmp_path / "gateway.log", settings=settings) as started:
        started.launch()
        started.wait()
        for engine in repaired_fleet.engines:
            body = {
                "name": f"e{engine.index}", "url": engine.url, "base": demo_model.served_name,
                "gpu_type": "h100", "slots": 2, "cpu_slots": 8, "max_rank": 8,
            }  # fmt: skip
            started.call("POST", "/admin/v1/engines", body)
        for tenant in ALL:
            started.call("POST", "/admin/v1/tenants", {"name": tenant})
            source = str(demo_model.adapters[tenant].path)
            started.call("POST", "/admin/v1/adapters", {"adapter": f"{tenant}/support", "source": source})
        yield started


def crowd_of(gateway: Gateway) -> Crowd:
    keys = {
        tenant: gateway.call("POST", "/admin/v1/keys", {"tenant": tenant, "role": "tenant"})["key"]
        for tenant in ALL
    }
    return Crowd(f"{gateway.url}/v1", keys, random.Random(SEED))


def records_of(gateway: Gateway) -> list[Record]:
    """Every record of the ledger, page by page, as an analyst would pull them."""
    found: list[Record] = []
    page: dict[str, Any] = {"next": ""}
    while page["next"] is not None:
        more = {"after": page["next"]} if page["next"] else {}
        page = gateway.call(
            "GET", "/finance/v1/usage", limit="1000", **{"from": "2020-01-01", "to": "2100-01-01"}, **more
        )
        found += page["data"]
    return found


def settle(gateway: Gateway) -> None:
    """Until no directory of a dead worker is left."""
    usage = gateway.state_dir / "usage"

    def left() -> list[str]:
        living = {p.pid for p in psutil.Process(gateway.pid).children() if is_worker(p)}
        names = [d.name for d in usage.iterdir() if not d.name.startswith(".")]
        return [name for name in names if int(name.split("-")[0]) not in living]

    until_now(lambda: not left(), what=lambda: f"nobody has closed {left()}")


def settled_records(gateway: Gateway, crowd: Crowd) -> list[Record]:
    """The ledger's records, once it has those of all answers."""
    answered = {seen.request_id for seen in crowd.seen if seen.finished}
    records: list[Record] = []

    def complete() -> bool:
        records[:] = records_of(gateway)
        return answered <= {record["request_id"] for record in records}

    until_now(complete)
    return records


def check_requests(seen: list[Seen], records: list[Record]) -> None:
    """What each client saw, against the ledger."""
    by_request: dict[str, list[Record]] = {}
    for record in records:
        by_request.setdefault(record["request_id"], []).append(record)
    for one in seen:
        mine = by_request.get(one.request_id, [])
        if one.finished:
            delivered = sorted((r for r in mine if r["billable"]), key=lambda r: r["attempt"])
            *begun, last = [r["outcome"] for r in delivered]
            if begun:  # engines died under the stream, and others went on with it
                assert (begun[0], last) == ("engine_error", "resumed"), (one, delivered)
                assert set(begun[1:]) <= {"resumed_cut"}, (one, delivered)
            else:
                assert last == "ok", (one, delivered)
            assert {r["tenant"] for r in delivered} == {one.tenant}
            completion = sum(r["completion_tokens"] for r in delivered)
            assert completion == one.asked, (one, delivered)
            if one.usage:
                assert (delivered[0]["prompt_tokens"], completion) == one.usage, (one, delivered)
        elif one.request_id:
            assert mine, f"{one} reached an engine, and is not in the ledger"


def attempts_in(log: Path, start: int) -> set[tuple[str, int]]:
    """The attempts that an engine took in, by its own log from byte `start` on."""
    text = log.read_bytes()[start:].decode(errors="replace")
    found = re.findall(r"Received request \S*?(req-[0-9a-f]{28})-(\d+)", text)
    return {(request, int(attempt)) for request, attempt in found}


def own_tokens(
    gateway: Gateway, database: Postgres | None, engine: DemoEngine, since: float
) -> tuple[int, int]:
    """Prompt and completion tokens that Florin itself has asked an engine for, to verify loads."""
    url = database.url("postgres") if database else f"sqlite:///{gateway.state_dir / 'ledger.db'}"
    c = engine_probes.c
    query = select(
        func.coalesce(func.sum(c.prompt_tokens), 0), func.coalesce(func.sum(c.completion_tokens), 0)
    )
    opened = create_engine(url)
    try:
        with opened.connect() as connection:
            where = c.engine == f"e{engine.index}", c.at >= since
            prompt, completion = connection.execute(query.where(*where)).one()
    finally:
        opened.dispose()
    return int(prompt), int(completion)


async def check_quiet_sums(
    gateway: Gateway, fleet: Fleet, database: Postgres | None, crowd: Crowd, known: set[str]
) -> list[Record]:
    """When nothing breaks, the sums are equal: a prompt counts once for each of its n answers. Returns all
    records, those that are `known` too."""
    began = time.time() * 1e6
    before = {engine.index: Counters.read(engine.url) for engine in fleet.engines}
    await crowd.run(QUIET_REQUESTS, at_once=16, aborts=0)
    records = await asyncio.to_thread(settled_records, gateway, crowd)
    for engine in fleet.engines:
        own, then = Counters.read(engine.url), before[engine.index]
        mine = [r for r in records if r["engine"] == f"e{engine.index}" and r["id"] not in known]
        # An engine may have let an adapter go a moment before it was asked for it: then the request went on,
        # and the sums below show that nothing was spent.
        spent = [r for r in mine if r["outcome"] != "failover"]
        assert {r["usage_source"] for r in spent} <= {"engine_final"}
        prompt, completion = own_tokens(gateway, database, engine, began)
        assert own.completion - then.completion == completion + sum(r["completion_tokens"] for r in mine)
        assert own.prompt - then.prompt == prompt + sum(r["prompt_tokens"] * r["n"] for r in mine)
    check_requests(crowd.seen, records)
    return records


# A client that is cut off just as its connection stands leaves it to the garbage collector: anyio's way, under
# the openai client; the more, the busier the machine. The gateways are processes of their own.
@pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <(socket.socket|_SelectorSocketTransport|function _SelectorTransport.__del__)"
    ":pytest.PytestUnraisableExceptionWarning"
)
@pytest.mark.long
async def test_every_attempt_is_in_the_ledger_once(
    gateway: Gateway, repaired_fleet: Fleet, database: Postgres | None, tmp_path: Path
):
    crowd = crowd_of(gateway)
    fire = Fire(gateway, repaired_fleet, database, tmp_path / "copies", random.Random(SEED))
    fire.copies.mkdir()
    began = time.time()
    logged = {engine.index: engine.log.stat().st_size for engine in repaired_fleet.engines}
    before = {engine.index: Counters.read(engine.url) for engine in repaired_fleet.engines}
    async with asyncio.TaskGroup() as group:
        work = [
            group.create_task(w)
            for w in (fire.kill_workers(), fire.kill_engines(), fire.take_the_database_away())
        ]
        group.create_task(fire.copy_logs())
        await crowd.run(REQUESTS, at_once=24, aborts=0.15)
        while not all(task.done() for task in work):  # the fire goes on: so does the crowd
            await crowd.run(50, at_once=24, aborts=0.15)
        fire.over.set()
    assert (fire.worker_kills, fire.engine_kills) == (WORKER_KILLS, ENGINE_KILLS)
    await asyncio.to_thread(settle, gateway)
    records = await asyncio.to_thread(settled_records, gateway, crowd)

    ids = [record["id"] for record in records]
    assert len(ids) == len(set(ids))
    attempts = Counter((r["request_id"], r["attempt"]) for r in records)
    assert set(attempts.values()) == {1}
    check_requests(crowd.seen, records)
    outcomes = Counter(one.kind for one in crowd.seen if one.finished)
    assert sum(outcomes.values()) > REQUESTS / 2, "too few were served for this to show anything"
    for engine in repaired_fleet.engines:
        reached = attempts_in(engine.log, logged[engine.index])
        assert reached, "the engine's log shows no requests: nothing is checked"
        assert reached - set(attempts) == set(), "an engine took in attempts that the ledger does not know"

    # Sums, for the processes that are there to be asked: what was seen to the end counts exactly; what broke
    # off was counted as far as it was seen, and the engine may have gone on to what was asked for.
    for engine in repaired_fleet.engines:
        own = Counters.read(engine.url).since(before[engine.index])
        since = max(own.began, began) * 1e6
        mine = [r for r in records if r["engine"] == f"e{engine.index}" and r["dispatched"] >= since]
        exact = [r for r in mine if r["usage_source"] == "engine_final"]
        partial = [r for r in mine if r["usage_source"] != "engine_final"]
        counted = sum(r["completion_tokens"] for r in exact)
        seen = counted + sum(r["completion_tokens"] for r in partial)
        most = counted + len(partial) * TOKENS[1] * 4
        _, probes = own_tokens(gateway, database, engine, since)  # but for a second's of a killed worker
        lost = WORKER_KILLS * LOST_PROBES
        assert seen + probes <= own.completion <= most + probes + lost, (
            engine.url,
            seen,
            own.completion,
            most,
        )

    records = await check_quiet_sums(gateway, repaired_fleet, database, crowd, set(ids))

    # The same log once more: nothing changes.
    for copy in fire.copies.iterdir():
        copy.rename(gateway.state_dir / "usage" / copy.name.replace("again", "1"))
    await asyncio.to_thread(settle, gateway)
    again = await asyncio.to_thread(records_of, gateway)
    assert {r["id"]: r for r in again} == {r["id"]: r for r in records}
    assert len(again) == len(records)

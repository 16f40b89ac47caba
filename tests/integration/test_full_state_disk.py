"""The disk of the state directory is really full: the usage log, the SQLite ledger and the embedded Valkey at
once, under two workers and traffic."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
import psutil
import pytest

from gateway.serving.workers import WORKER
from loadtests.mock_engine import MockEngine
from tests.integration.test_metering_under_fire import processes
from tests.integration.test_outages import Served
from tests.support.alerting import fires, silent
from tests.support.harness import OPERATOR_KEY
from tests.support.small_disk import SmallDisk, small_disk
from tests.support.waiting import until

PATIENCE = 90.0


@pytest.fixture
def disk(tmp_path: Path):
    with small_disk(tmp_path / "disk", 48) as made:
        yield made


@dataclass
class Client:
    """Asks without end, on connections that last. Mutable."""

    http: httpx2.AsyncClient
    ok: list[str] = field(default_factory=list)
    others: Counter[tuple[int, str]] = field(default_factory=Counter)
    cut_off: int = 0
    slowest: float = 0.0
    stopping: bool = False

    async def run(self) -> None:
        body = {"model": "support", "messages": [{"role": "user", "content": "x"}]}
        while not self.stopping:
            started = time.monotonic()
            try:
                answer = await self.http.post("/v1/chat/completions", json=body)
            except httpx2.TransportError:
                self.cut_off += 1
            else:
                if answer.status_code == 200:
                    self.ok.append(answer.headers["x-request-id"])
                else:
                    assert answer.headers["retry-after"]
                    self.others[answer.status_code, answer.json()["error"]["code"]] += 1
            self.slowest = max(self.slowest, time.monotonic() - started)
            await asyncio.sleep(0.02)


async def test_it_refuses_cleanly_and_goes_on_by_itself(disk: SmallDisk, mock: MockEngine, tmp_path: Path):
    served = Served(disk.path / "state", workers=2, artifact_dir=tmp_path / "artifacts")
    try:
        key = await asyncio.to_thread(served.register, mock.url, tmp_path)
        async with (
            httpx2.AsyncClient(
                base_url=served.url, headers={"authorization": f"Bearer {key}"}, timeout=60
            ) as http,
            httpx2.AsyncClient(
                base_url=served.url,
                headers={"authorization": f"Bearer {OPERATOR_KEY}"},
                limits=httpx2.Limits(max_keepalive_connections=0),
                timeout=60,
            ) as operator,
        ):
            client = Client(http)
            asking = [asyncio.create_task(client.run()) for _ in range(4)]
            await incident(disk, served, client, operator, tmp_path)
            client.stopping = True
            await asyncio.gather(*asking)
            await check_books(client, operator, mock)
    finally:
        errors = served.stop()
    assert "exit code -7" not in errors
    assert errors.count("died with exit code -9") == 1


async def incident(
    disk: SmallDisk, served: Served, client: Client, operator: httpx2.AsyncClient, tmp_path: Path
) -> None:
    async def serving() -> bool:
        return len(client.ok) >= goal

    async def refusing() -> bool:
        return client.others.total() > 20

    async def told() -> bool:
        nonlocal during
        during = (await operator.get("/metrics")).text
        return 'condition="usage_unrecorded"} 1.0' in during and 'condition="disk_low"} 1.0' in during

    async def sound() -> bool:
        answer = await operator.get("/readyz")
        return (answer.status_code, answer.json()["status"]) == (200, "ok")

    during, goal = "", 20
    await until(serving)
    before = (await operator.get("/metrics")).text
    disk.fill()
    await until(refusing)
    acknowledged = []
    for number in range(20):
        answer = await operator.post("/admin/v1/tenants", json={"name": f"t{number}"})
        assert answer.status_code in {201, 503}, answer.text
        if answer.status_code == 201:
            acknowledged.append(f"t{number}")
    await until(told)
    stays, goes = processes(served, WORKER)
    goes.send_signal(signal.SIGKILL)  # the next one starts on a full disk, or tries to
    refused = client.others.total() + 50

    async def still_refusing() -> bool:
        return client.others.total() > refused

    await until(still_refusing)
    disk.free()
    goal = len(client.ok) + 20
    await until(serving)
    await until(sound)
    assert stays.is_running()
    assert stays.status() != psutil.STATUS_ZOMBIE
    assert set(client.others) <= {(503, "metering_unavailable"), (503, "store_unavailable")}
    assert client.cut_off <= 4, "only what the killed worker was answering"
    assert client.slowest < 50
    names = {t["name"] for t in (await operator.get("/admin/v1/tenants")).json()["data"]}
    assert names >= {"acme", *acknowledged}
    assert await asyncio.to_thread(silent, "FlorinDiskSpace", before, tmp_path)
    assert await asyncio.to_thread(fires, "FlorinDiskSpace", before, during, tmp_path)
    assert await asyncio.to_thread(fires, "FlorinErrors", before, during, tmp_path)


async def check_books(client: Client, operator: httpx2.AsyncClient, mock: MockEngine) -> None:
    """Each answer is in the ledger once and billed, and so is nothing else; engines heard of nothing else."""
    rows: list[dict] = []

    async def complete() -> bool:
        rows.clear()
        after = ""
        while True:
            page = (await operator.get(f"/finance/v1/usage?limit=1000{after}")).json()
            rows.extend(page["data"])
            if not page["next"]:
                break
            after = f"&after={page['next']}"
        return {row["request_id"] for row in rows if row["engine"]} >= set(client.ok)

    await until(complete)
    assert len({row["id"] for row in rows}) == len(rows)
    billed = {row["request_id"] for row in rows if row["billable"]}
    lost = set(client.ok) - billed
    # What the killed worker held in memory because it could not be written is closed as orphaned.
    assert len(lost) <= 4
    assert billed <= set(client.ok)
    heard = {call.headers["x-request-id"] for call in mock.state.calls}
    attempts = {f"{row['request_id']}-{row['attempt']}": row["outcome"] for row in rows if row["engine"]}
    assert heard <= attempts.keys()
    assert {attempts[name] for name in attempts.keys() - heard} <= {"rejected", "orphaned"}

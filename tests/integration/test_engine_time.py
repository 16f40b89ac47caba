"""Engines live and die, gateways come and go: what the ledger then says of GPU time, and /metrics with it."""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path

import httpx2
import psutil
from sqlalchemy import select

from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import engine_counters, engine_spans
from gateway.serving.workers import WORKER
from loadtests.mock_engine import MockEngine
from tests.integration.test_cli import serving
from tests.support.harness import OPERATOR_KEY, Gateway, fake_adapter, running_gateway
from tests.support.waiting import until

S = 1_000_000
QUICK = {"probe_interval": 0.05, "ledger_maintenance_interval": 0.3}


def now() -> int:
    return time.time_ns() // 1000


def spans(state_dir: Path) -> list[tuple[str, int, int]]:
    table = engine_spans.c
    ledger = Ledger(f"sqlite:///{state_dir / 'ledger.db'}")
    with ledger.read() as connection:
        rows = connection.execute(
            select(table.phase, table.started, table.seen).order_by(table.started)
        ).all()
    ledger.close()
    return [tuple(row) for row in rows]


def counters(state_dir: Path) -> list[tuple[int, int, int]]:
    table = engine_counters.c
    ledger = Ledger(f"sqlite:///{state_dir / 'ledger.db'}")
    query = select(table.prompt_tokens, table.cached_tokens, table.completion_tokens)
    with ledger.read() as connection:
        rows = connection.execute(query.order_by(table.epoch)).all()
    ledger.close()
    return [tuple(row) for row in rows]


async def value(client: httpx2.AsyncClient, series: str) -> float | None:
    text = (await client.get("/metrics")).text
    found = re.search(rf"^{re.escape(series)} (\S+)$", text, re.MULTILINE)
    return None if found is None else float(found[1])


async def ask(gateway: Gateway, words: str = "Hello") -> None:
    async with gateway.client("acme") as client:
        await client.chat.completions.create(
            model="support", messages=[{"role": "user", "content": words}], max_tokens=8
        )


async def test_an_engine_that_dies_and_comes_back(tmp_path: Path, valkey_url: str, prefix: str):
    state_dir = tmp_path / "state"
    async with MockEngine() as engine, running_gateway(state_dir, valkey_url, prefix, **QUICK) as gateway:
        begun = now()
        await gateway.add_engine("a", engine.url, registered=begun)
        await gateway.add_tenant("acme")
        await gateway.add_adapter("acme/support", fake_adapter(tmp_path / "acme"))
        await ask(gateway, "word " * 40)
        await ask(gateway, "word " * 40)  # from the prefix cache
        seen = engine.state.probes["/metrics"]
        await until(lambda: engine.state.probes["/metrics"] > seen + 1)
        engine.die()
        for _ in range(20):  # rounds of the loop, in which the last answers of before are noted
            await asyncio.sleep(0)
        dead = now()
        await until(lambda: gateway.state.pool.state("a").healthy is False)
        await asyncio.sleep(1.2)
        back = now()
        await engine.revive()
        engine.state.started -= 0.1  # it says that it took so long to start
        await until(lambda: gateway.state.pool.state("a").healthy)
        await ask(gateway)
        async with gateway.http() as client:
            await until(lambda: gateway.state.pool.state("a").running == 0)

            async def shown() -> bool:
                return bool(await value(client, 'florin_gpu_busy_seconds_total{engine="a",gpu_type="h100"}'))

            await until(shown)
            alive = await value(client, 'florin_gpu_provisioned_seconds_total{engine="a",gpu_type="h100"}')
            assert alive is not None
            assert alive > 0
            assert await value(client, "florin_ledger_imbalance_nano_gpu_hours") == 0
    ended = now()
    found = spans(state_dir)
    assert [phase for phase, _, _ in found] == ["up", "startup", "up"]
    (_, start, end), (_, process, ready), (_, again, last) = found
    assert begun <= start <= end <= dead + S  # a probe answered before the death may be noted after it
    assert dead + S < back - S // 8 <= process  # the engine says it to a hundredth of a second
    assert 80_000 <= ready - process <= 120_000
    assert ready <= again <= ready + S  # likewise a probe that failed just before it was back
    assert again < last <= ended
    [first, second] = counters(state_dir)
    assert first[0] > 80
    assert first[1] > 0
    assert first[2] == 16
    assert second == (2, 0, 8)  # its last tokens too: there is a last look


async def test_a_gateway_that_restarts_leaves_no_gap(tmp_path: Path, valkey_url: str, prefix: str):
    state_dir = tmp_path / "state"
    async with MockEngine() as engine:
        async with running_gateway(state_dir, valkey_url, prefix, **QUICK) as gateway:
            await gateway.add_engine("a", engine.url, registered=now())
            await until(lambda: gateway.state.pool.state("a").healthy)
        await asyncio.sleep(0.3)
        async with running_gateway(state_dir, valkey_url, prefix, **QUICK) as gateway:
            await until(lambda: gateway.state.pool.state("a").healthy)
            await until(lambda: len(spans(state_dir)) == 2)
    (_, _, first_end), (_, second_start, _) = spans(state_dir)
    assert second_start == first_end


async def test_any_of_several_workers_shows_the_ledger_figures_and_a_killed_one_takes_its_process_along(
    tmp_path: Path, valkey_url: str, prefix: str
):
    settings = {
        "FLORIN_REDIS_URL": valkey_url,
        "FLORIN_REDIS_PREFIX": prefix,
        "FLORIN_WORKERS": "2",
        "FLORIN_LEDGER_WARM_UP": "false",  # only the one that leads has a process beside it
        "FLORIN_PROBE_INTERVAL": "0.1",
        "FLORIN_LEDGER_MAINTENANCE_INTERVAL": "0.5",
    }
    headers = {"authorization": f"Bearer {OPERATOR_KEY}", "connection": "close"}
    with serving(tmp_path / "state", **settings) as gateway:
        async with (
            MockEngine() as engine,
            httpx2.AsyncClient(base_url=gateway.url, headers=headers) as client,
        ):
            fields = {"base": "base", "gpu_type": "h100", "slots": 2, "max_rank": 8}
            body = {"name": "a", "url": engine.url, **fields}
            assert (await client.post("/admin/v1/engines", json=body)).status_code == 201
            series = 'florin_gpu_provisioned_seconds_total{engine="a",gpu_type="h100"}'

            async def shown() -> bool:  # on connections of their own, so by either worker
                for _ in range(8):
                    if not await value(client, series):
                        return False
                return True

            await until(shown, 75)
            assert await value(client, "florin_ledger_imbalance_nano_gpu_hours") == 0
            workers = [p for p in psutil.Process(gateway.process.pid).children() if p.name() == WORKER]
            assert len(workers) == 2
            # By the processes beside it, of which each worker has one from which others are forked.
            leader = max(workers, key=lambda worker: len(worker.children()))
            beside = leader.children(recursive=True)
            assert len(beside) > 1
            before = await value(client, "florin_ledger_maintenance_timestamp_seconds")
            leader.kill()
            await until(lambda: not any(p.is_running() for p in beside))

            async def kept_on() -> bool:
                found = await value(client, "florin_ledger_maintenance_timestamp_seconds")
                return found is not None and before is not None and found > before + 0.2

            await until(kept_on, 90)
        assert gateway.stop() == 0
        assert "Traceback" not in gateway.errors.read_text()

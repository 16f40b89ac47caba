"""The gateway behind Sentinels, as people run it, and in a Cluster: the primary dies under requests."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import httpx2
from openai import APIStatusError
from redis import Redis

from loadtests.mock_engine.process import MockProcess
from tests.integration.test_cli import Served, serving
from tests.integration.test_lost_registry import Traffic, all_know, ask
from tests.support.harness import Load, fake_adapter, running_gateway
from tests.support.valkey_servers import restricted, servers, slot_owner, start_cluster, start_sentinels
from tests.support.waiting import until_now

COLD = {"model": "cold", "messages": [{"role": "user", "content": "x"}], "max_tokens": 2}


async def test_the_primarys_death_costs_no_request(tmp_path: Path):
    with servers(tmp_path / "valkey") as running, MockProcess() as engine:
        (tmp_path / "valkey").mkdir()
        primary, replica, sentinels = await asyncio.to_thread(start_sentinels, running, tmp_path / "valkey")
        for port in (primary, replica):  # users are not replicated
            with Redis(port=port) as server:
                server.execute_command(*restricted("florin", "secret"))
        hosts = ",".join(f"127.0.0.1:{port}" for port in sentinels)
        url = f"redis+sentinel://florin:secret@{hosts}/main"
        async with running_gateway(tmp_path / "state", url, "florin") as gateway:
            await gateway.add_engine("a1", engine.url)
            key = await gateway.add_tenant("acme")
            await gateway.add_adapter("acme/support", fake_adapter(tmp_path / "acme"))
            await gateway.add_adapter("acme/cold", fake_adapter(tmp_path / "cold"))
            assert await asyncio.to_thread(Traffic(gateway.url, key).ask) == "acme/support@v1"
        with serving(tmp_path / "state", FLORIN_REDIS_URL=url, FLORIN_WORKERS="2") as served:
            traffic = Traffic(served.url, key)
            with traffic.running():
                traffic.more()
                with Redis(port=primary) as server:
                    server.execute_command("WAIT", 1, 5000)
                give_up_after(3600, sentinels)  # or it may be over before anybody looks
                running.kill(primary)
                until_now(lambda: all_know(served, redis=False))
                traffic.more()
                give_up_after(0.5, sentinels)
                until_now(lambda: all_know(served, redis=True))
                traffic.more()
            assert traffic.failed == []
            assert set(traffic.answered) == {"acme/support@v1"}
            assert ask(served, "POST", "/v1/chat/completions", key=key, body=COLD).status_code == 200
            assert ask(served, "POST", "/admin/v1/tenants", body={"name": "bolt"}).status_code == 201
            doctor = ask(served, "GET", "/admin/v1/doctor").json()["data"]
            (alone,) = [found for found in doctor if found["check"] == "redis_replicas"]
            assert alone["status"] == "warning"  # the old primary is gone
            counted = {"acme/support": 1 + len(traffic.answered), "acme/cold": 1}
            until_now(
                lambda: requests_of_adapters(served) == counted,
                what=lambda: str(requests_of_adapters(served)),
            )


def give_up_after(seconds: float, sentinels: list[int]) -> None:
    """How long a primary must be silent before another is promoted."""
    for port in sentinels:
        with Redis(port=port) as server:
            server.execute_command("SENTINEL", "SET", "main", "down-after-milliseconds", int(seconds * 1000))


def requests_of_adapters(served: Served) -> dict[str, int]:
    """What the ledger has so far."""
    rows = ask(served, "GET", "/finance/v1/costs?by=adapter").json()["rows"]
    return {row["adapter"]: row["requests"] for row in rows}


async def test_in_a_cluster_cold_loads_resume_and_everything_is_counted_once(tmp_path: Path):
    with servers(tmp_path / "valkey") as running, MockProcess() as engine:
        nodes = await asyncio.to_thread(start_cluster, running)
        url = "redis+cluster://" + ",".join(f"127.0.0.1:{port}" for port in nodes)
        primary = slot_owner(nodes[0], "{florin}")
        async with running_gateway(tmp_path / "state", url, "florin") as gateway:
            await gateway.add_engine("a1", engine.url)
            await gateway.add_tenant("acme")
            for name in ("support", "cold"):
                await gateway.add_adapter(f"acme/{name}", fake_adapter(tmp_path / name))
            load, refusals = Load(gateway), list[httpx2.Response]()
            async with asyncio.TaskGroup() as customers, gateway.client("acme") as client:
                customers.create_task(load.run())  # a request that fails ends the test
                await load.more(5)
                await asyncio.to_thread(lambda: Redis(port=primary).execute_command("WAIT", 1, 5000))
                running.kill(primary)
                while True:
                    try:
                        await client.chat.completions.create(**COLD)  # type: ignore[call-overload]
                    except APIStatusError as error:
                        refusals.append(error.response)
                        await asyncio.sleep(0.05)
                    else:
                        break
                await load.more(5)
                load.stop()
            told = {(r.status_code, "retry-after" in r.headers) for r in refusals}
            assert told <= {(503, True)}  # none, where it was over before anybody asked
            counted = Counter(record.adapter for record in await gateway.usage())
            assert counted == {"acme/support": len(load.answered), "acme/cold": 1}
            assert len(loads(engine)) == 2
            await gateway.add_tenant("bolt")


def loads(engine: MockProcess) -> list[dict[str, Any]]:
    return [call for call in engine.log()["admin"] if call["status"] == 200]

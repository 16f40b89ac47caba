"""The gateway as people run it, behind three Sentinels whose primary dies."""

from __future__ import annotations

import asyncio
from pathlib import Path

from redis import Redis

from loadtests.mock_engine.process import MockProcess
from tests.integration.test_cli import serving
from tests.integration.test_lost_registry import Traffic, all_are, ask
from tests.support.harness import fake_adapter, running_gateway
from tests.support.valkey_servers import restricted, servers, start_sentinels
from tests.support.waiting import until_now


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
                running.kill(primary)
                until_now(lambda: all_are(served, "degraded"))
                traffic.more()
                until_now(lambda: all_are(served, "ok"))
                traffic.more()
            assert traffic.failed == []
            assert set(traffic.answered) == {"acme/support@v1"}
            cold = {"model": "cold", "messages": [{"role": "user", "content": "x"}], "max_tokens": 2}
            assert ask(served, "POST", "/v1/chat/completions", key=key, body=cold).status_code == 200
            assert ask(served, "POST", "/admin/v1/tenants", body={"name": "bolt"}).status_code == 201

"""What the operator is shown of placement is so, whichever worker is asked."""

from __future__ import annotations

import asyncio
import contextlib

import httpx2

from tests.support.harness import running_gateway
from tests.support.waiting import until


async def test_every_workers_requests_are_counted_and_explain_says_what_is_done(
    deployment, tmp_path, valkey_url, prefix
):
    await deployment.gateway.set_state("b", "draining")
    deployment.a.faults.update({"event_delay": 2.0})
    async with contextlib.AsyncExitStack() as stack:
        other = await stack.enter_async_context(running_gateway(tmp_path / "two", valkey_url, prefix))
        for gateway, count in ((deployment.gateway, 30), (other, 20)):
            client = await stack.enter_async_context(gateway.http(deployment.gateway.keys["acme"]))
            for _ in range(count):
                task = asyncio.create_task(_hold(client))
                stack.push_async_callback(_cancel, task)
        await deployment.a.until(lambda state: len(state.calls) == 50, timeout=30)
        await deployment.gateway.set_state("b", "active")
        for gateway in (deployment.gateway, other):
            client = await stack.enter_async_context(gateway.http())
            engines = gateway.state.catalog.engines
            await until(lambda engines=engines: engines["b"].state == "active")
            await until(lambda client=client: _shows(client, 50))
            decision = (await client.get("/admin/v1/explain/acme/support")).json()["decision"]
            assert (decision["action"], decision["engine"]) == ("load", "b")
            assert {c["engine"]: c["action"] for c in decision["candidates"]} == {"a": "serve", "b": "load"}


async def _hold(client: httpx2.AsyncClient) -> None:
    body = {
        "model": "support",
        "messages": [{"role": "user", "content": "hi"}],
        "stream": True,
        "ignore_eos": True,
    }
    async with client.stream("POST", "/v1/chat/completions", json=body | {"max_tokens": 1000}) as answer:
        await answer.aread()


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


async def _shows(client: httpx2.AsyncClient, in_flight: int) -> bool:
    engines = (await client.get("/admin/v1/placement")).json()["data"]
    return sum(p["in_flight"] for e in engines for p in e["placements"]) == in_flight

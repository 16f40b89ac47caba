"""What would be answered too late is refused at once, and who is refused is told when to come again."""

from __future__ import annotations

import asyncio

import httpx

from loadtests.mock_engine import MockEngine
from tests.harness import fake_adapter, running_gateway

BODY = {"model": "support", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}


async def ask(client: httpx.AsyncClient) -> httpx.Response:
    return await client.post("/v1/chat/completions", json=BODY)


async def test_what_would_wait_too_long_for_an_engine_is_refused(tmp_path, valkey_url, prefix):
    settings = {"probe_interval": 0.05, "max_queue_seconds": 1.0}
    async with (
        MockEngine(max_num_seqs=2) as engine,
        running_gateway(tmp_path / "state", valkey_url, prefix, **settings) as gateway,
    ):
        await gateway.add_engine("a", engine.url)
        await gateway.add_tenant("acme")
        await gateway.add_adapter("acme/support", fake_adapter(tmp_path / "acme"))
        async with gateway.http(gateway.keys["acme"]) as client, gateway.http() as operator:
            assert (await ask(client)).status_code == 200
            engine.faults.update({"event_delay": 0.25})
            refused: list[httpx.Response] = []

            async def one_after_the_other() -> None:
                while not refused:
                    answer = await ask(client)
                    if answer.status_code != 200:
                        refused.append(answer)

            # Two at a time, each half a second: the last of forty waits for ten.
            asking = [asyncio.create_task(one_after_the_other()) for _ in range(40)]
            state = gateway.state.pool.state("a")
            async with asyncio.timeout(40):
                await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
            answer = refused[0]
            error = answer.json()["error"]
            assert (answer.status_code, error["code"], error["type"]) == (503, "overloaded", "server_error")
            assert int(answer.headers["retry-after"]) >= 2  # above the setting, rounded up
            assert "would wait" in error["message"]
            heard = {call.headers["x-request-id"].rpartition("-")[0] for call in engine.state.calls}
            assert answer.headers["x-request-id"] not in heard
            assert len(heard) > 1
            assert (await operator.get("/healthz")).status_code == 200
            assert (await operator.get("/readyz")).json()["status"] == "ok"
            engine.faults.update({"event_delay": 0.0})
            await asyncio.gather(*asking)
            async with asyncio.timeout(40):
                while state.runs:
                    await asyncio.sleep(0.02)
            assert (await ask(client)).status_code == 200


async def test_a_worker_that_has_too_much_to_do_refuses_before_it_reads(tmp_path, valkey_url, prefix):
    async with running_gateway(tmp_path / "state", valkey_url, prefix) as gateway:
        watch = gateway.state.lifecycle.loop_watch
        watch.note = lambda late, busy: None  # its own looks
        watch._late = 2
        async with gateway.http() as client:
            answer = await client.post("/v1/chat/completions", content=b"{")
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
            assert answer.json()["error"]["code"] == "overloaded"
            assert (await client.get("/healthz")).status_code == 200
            assert (await client.get("/readyz")).status_code == 200
            assert (await client.get("/admin/v1/placement")).status_code == 200
            watch._late = 0
            assert (await client.post("/v1/chat/completions", content=b"{")).status_code == 403

"""Redis goes away, a worker is killed or stopped, a client reads slowly: what then still works."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import httpx2
import openai
import psutil
import pytest

from adapters.store.embedded import EmbeddedValkey
from loadtests.mock_engine import MockEngine
from tests.integration.conftest import Deployment
from tests.integration.test_data_plane import HELLO, voice
from tests.integration.test_routing import ask, stream
from tests.support.harness import OPERATOR_KEY, fake_adapter, running_gateway
from tests.support.lora import LLAMA, write_adapter
from tests.support.waiting import PATIENCE_S, until


@pytest.fixture
async def town_and_valkey(tmp_path: Path) -> AsyncIterator[tuple[Deployment, EmbeddedValkey]]:
    with EmbeddedValkey(tmp_path / "redis") as valkey:
        async with (
            running_gateway(tmp_path / "state", valkey.url, "florin", placement_timeout=3.0) as gateway,
            MockEngine() as a,
            MockEngine() as b,
        ):
            await gateway.add_engine("a", a.url)
            await gateway.add_engine("b", b.url, gpu_type="l40s")
            for tenant in ("acme", "bolt"):
                await gateway.add_tenant(tenant)
                await gateway.add_adapter(f"{tenant}/support", fake_adapter(tmp_path / tenant))
            yield Deployment(gateway, a, b, tmp_path), valkey


async def test_redis_failure_is_not_an_outage(town_and_valkey: tuple[Deployment, EmbeddedValkey]):
    deployment, valkey = town_and_valkey
    gateway = deployment.gateway
    assert voice(deployment, "acme/support") in await ask(deployment, "acme")
    await until(lambda: gateway.state.residency.holders(voice(deployment, "acme/support")))
    os.kill(valkey.pid, signal.SIGKILL)
    await until(lambda: not gateway.state.follower.connected)

    for _ in range(5):  # what is resident is served, and metered
        assert voice(deployment, "acme/support") in await stream(deployment, "acme")
    with pytest.raises(openai.InternalServerError) as caught:  # a cold load needs a decision
        await ask(deployment, "bolt")
    assert (caught.value.status_code, caught.value.code) == (503, "store_unavailable")
    assert "Redis" not in caught.value.message  # nor where it is: what is behind the gateway is not told
    assert "valkey" not in caught.value.message
    assert int(caught.value.response.headers["retry-after"]) >= 1
    async with gateway.http("fl_unknown_key") as http:  # so does a new key
        answer = await http.get("/v1/models")
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "store_unavailable")
    async with gateway.http() as http:
        ready = (await http.get("/readyz")).json()
        assert (ready["status"], ready["redis"]) == ("degraded", False)
        assert "feed_lost" in ready["conditions"]
        answer = await http.post("/admin/v1/tenants", json={"name": "dora"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "store_unavailable")

    await asyncio.to_thread(valkey.start)
    await until(lambda: gateway.state.follower.connected)
    await until(lambda: answered(deployment, "bolt"))
    records = await gateway.usage("acme")
    assert [record.outcome for record in records] == ["ok"] * 6


async def test_what_is_resident_is_served_without_a_round_trip_to_redis(
    town_and_valkey: tuple[Deployment, EmbeddedValkey],
):
    """Redis hangs: whoever asked it would wait for longer than this test does."""
    deployment, valkey = town_and_valkey
    speaker = voice(deployment, "acme/support")
    assert speaker in await ask(deployment, "acme")
    await until(lambda: deployment.gateway.state.residency.holders(speaker))
    os.kill(valkey.pid, signal.SIGSTOP)
    try:
        async with asyncio.timeout(PATIENCE_S / 2):
            assert speaker in await ask(deployment, "acme")
            assert speaker in await stream(deployment, "acme")
    finally:
        os.kill(valkey.pid, signal.SIGCONT)


async def answered(deployment: Deployment, tenant: str) -> bool:
    """Three seconds for a load may be too few on a busy machine."""
    with suppress(openai.InternalServerError):
        return voice(deployment, f"{tenant}/support") in await ask(deployment, tenant)
    return False


async def test_slow_reader_does_not_delay_others(deployment: Deployment):
    for engine in deployment.engines:
        engine.faults.update({"event_delay": 0.0005})
    gateway = deployment.gateway
    await ask(deployment, "acme")
    body = b'{"model": "support", "stream": true, "max_tokens": 4000, "messages": [{"role": "user", "content": "x"}]}'
    request = (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer "
        + gateway.keys["acme"].encode()
        + b"\r\ncontent-length: %d\r\n\r\n" % len(body)
        + body
    )
    host, port = gateway.url.removeprefix("http://").split(":")
    slow = socket.socket()
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    slow.connect((host, int(port)))
    with slow:
        slow.sendall(request)
        slow.setblocking(False)
        await asyncio.sleep(0.3)
        texts = await asyncio.gather(*(stream(deployment, "acme", max_tokens=50) for _ in range(10)))
        assert len(set(texts)) == 1
    (holder,) = [engine for engine in deployment.engines if engine.state.calls]
    await holder.until(lambda state: not any(call.outcome == "running" for call in state.calls))


# -- a real process and real signals


class Served:
    """`florin serve` in a process of its own."""

    def __init__(self, state_dir: Path, **settings: object) -> None:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("FLORIN_")} | {
            "FLORIN_STATE_DIR": str(state_dir),
            "FLORIN_PORT": "0",
            "FLORIN_OPERATOR_KEY": OPERATOR_KEY,
            **{f"FLORIN_{k.upper()}": str(v) for k, v in settings.items()},
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gateway.cli", "serve"],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        line = self.process.stdout.readline()
        assert "listens on" in line, self.process.stderr.read()
        self.url = line.split()[-1]
        self.http = httpx2.Client(
            base_url=self.url, headers={"authorization": f"Bearer {OPERATOR_KEY}"}, timeout=PATIENCE_S
        )

    def family(self) -> list[psutil.Process]:
        parent = psutil.Process(self.process.pid)
        return [parent, *parent.children(recursive=True)]

    def register(self, engine: str, tmp_path: Path) -> str:
        """A tenant with one adapter on one engine; its key."""

        def post(path: str, body: dict) -> dict:
            answer = self.http.post(f"/admin/v1/{path}", json=body)
            assert answer.status_code in {200, 201}, answer.text
            return answer.json()

        config = tmp_path / "config.json"
        config.write_text(json.dumps(LLAMA.config))
        post("engines", {
            "name": "a", "url": engine, "base": "tiny/base", "gpu_type": "h100", "slots": 2, "max_rank": 8,
            "base_config": str(config),
        })  # fmt: skip
        post("tenants", {"name": "acme"})
        post("adapters", {"adapter": "acme/support", "source": str(write_adapter(tmp_path / "lora"))})
        return post("keys", {"tenant": "acme", "role": "tenant"})["key"]

    def stop(self) -> str:
        if self.process.poll() is None:
            self.process.kill()
        _, errors = self.process.communicate(timeout=PATIENCE_S)
        self.http.close()
        return errors


async def usage(served: Served, count: int) -> list[dict]:
    """The ledger's records, as soon as there are so many: what dead workers left is shipped meanwhile."""

    async def found() -> list[dict]:
        records = (await asyncio.to_thread(served.http.get, "/finance/v1/usage")).json()["data"]
        return records if len(records) >= count else []

    return await until(found)


async def start_streams(served: Served, key: str, count: int, tokens: int) -> list[asyncio.Task[str]]:
    async def one() -> str:
        async with openai.AsyncOpenAI(base_url=served.url + "/v1", api_key=key, max_retries=0) as client:
            events = await client.chat.completions.create(
                model="support", messages=HELLO, stream=True, max_tokens=tokens,
                extra_body={"ignore_eos": True},
            )  # fmt: skip
            return "".join([chunk.choices[0].delta.content or "" async for chunk in events])

    return [asyncio.ensure_future(one()) for _ in range(count)]


async def test_after_the_grace_period_streams_end_with_an_error_event(tmp_path: Path, mock: MockEngine):
    mock.faults.update({"event_delay": 0.2})
    served = Served(tmp_path / "state", shutdown_grace=1)
    try:
        key = await asyncio.to_thread(served.register, mock.url, tmp_path)
        (task,) = await start_streams(served, key, 1, tokens=1000)
        await mock.until(lambda state: len(state.calls) == 1)
        served.process.send_signal(signal.SIGTERM)
        with pytest.raises(openai.APIError, match="The gateway is shutting down"):
            await task
        assert await asyncio.to_thread(served.process.wait, PATIENCE_S) == 0
    finally:
        assert "Traceback" not in served.stop()
    again = Served(tmp_path / "state")
    try:
        (record,) = await usage(again, 1)
        assert (record["outcome"], record["billable"]) == ("orphaned", False)
        assert record["completion_tokens"] > 0
    finally:
        again.stop()

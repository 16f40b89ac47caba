"""`florin engine run` around a real vLLM engine: called over mutual TLS, drained, killed."""

from __future__ import annotations

import asyncio
import io
import tarfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from adapters.security.tls import client_context
from deploy.demo.engine_env import SITE, EngineEnv
from deploy.demo.engines import START_TIMEOUT_S
from deploy.demo.model import DemoModel
from tests.engine.conftest import SETTINGS, add_tenant
from tests.support.certificates import Authority, put
from tests.support.engine_hosts import Agent, end, free_port, registered, start_agent
from tests.support.forms import LONG
from tests.support.harness import Gateway, running_gateway
from tests.support.waiting import until

CUSTOMERS = ("acme", "bolt")
TOKENS = 200
"""Of an answer that is to take long."""


@dataclass
class Site:
    gateway: Gateway
    agent: Agent
    model: DemoModel

    async def answer(self, tenant: str, question: str, **options: Any) -> AsyncIterator[str]:
        """Streamed."""
        async with self.gateway.client(tenant, timeout=120) as client:
            events = await client.chat.completions.create(
                model="support", messages=[{"role": "user", "content": question}], stream=True, temperature=0,
                **{"max_tokens": 200, **options},
            )  # fmt: skip
            async for chunk in events:
                yield chunk.choices[0].delta.content or ""

    async def ask(self, tenant: str, question: str) -> str:
        return "".join([text async for text in self.answer(tenant, question)])


def tar(directory: Path) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for file in sorted(directory.iterdir()):
            archive.add(file, file.name)
    return out.getvalue()


def engine_flags(model: DemoModel, port: int) -> list[str]:
    return (
        f"--served-model-name {model.served_name} --port {port} --max-loras 2 --max-cpu-loras 8 "
        f"--max-lora-rank {model.rank} --max-model-len 1024 --max-num-seqs 32 --max-num-batched-tokens 1024 "
        "--kv-cache-memory-bytes 134217728 --enforce-eager --dtype float32 --block-size 32"
    ).split()


@pytest.fixture
def secure(tmp_path: Path) -> dict[str, Any]:
    """Settings of the gateway's way to an engine that takes requests with our CA's certificates only, and with a key
    besides."""
    ca = Authority.at(tmp_path / "pki")
    caller = ca.issue("caller", "florin")
    put(tmp_path / "pki" / "token", b"secret-of-the-engines")
    ca.issue("engine")
    return {
        "engine_ca": ca.file,
        "engine_cert": caller.cert,
        "engine_key": caller.key,
        "engine_token_file": tmp_path / "pki" / "token",
    }


def on_the_host(pki: Path, secure: dict[str, Any]) -> tuple[list[str], dict[str, str]]:
    """The engine's flags, and the agent's environment."""
    cert, key = str(pki / "engine.pem"), str(pki / "engine.key")
    words = ["--ssl-certfile", cert, "--ssl-keyfile", key, "--ssl-ca-certs", str(secure["engine_ca"])]
    environ = {f"FLORIN_{name.upper()}": str(value) for name, value in secure.items()}
    environ |= {
        "FLORIN_TLS_CERT": cert,
        "FLORIN_TLS_KEY": key,
        "FLORIN_TLS_CLIENT_CA": str(secure["engine_ca"]),
    }
    return [*words, "--ssl-cert-reqs", "2"], environ | {"VLLM_API_KEY": "secret-of-the-engines"}


@pytest.fixture
async def site(  # fixtures
    engine_env: EngineEnv,
    demo_model: DemoModel,
    tmp_path: Path,
    valkey_url: str,
    prefix: str,
    secure: dict[str, Any],
) -> AsyncIterator[Site]:
    """A gateway, and one engine that an agent has started."""
    if engine_env.gpus:
        pytest.skip("the flags are those of the CPU build")
    port = free_port()
    environ = {
        "VLLM_TARGET_DEVICE": "cpu", "VLLM_CPU_OMP_THREADS_BIND": "1", "OMP_NUM_THREADS": "1",
        "TORCHDYNAMO_DISABLE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1",
    }  # fmt: skip
    words, more = on_the_host(tmp_path / "pki", secure)
    async with running_gateway(tmp_path / "state", valkey_url, prefix, **SETTINGS, **secure) as gateway:
        command = (*engine_env.command, str(demo_model.base), *engine_flags(demo_model, port), *words)
        if not LONG:  # vLLM's own way to start three processes imports everything three times
            command = ("env", f"PYTHONPATH={SITE}", "FLORIN_ENGINE_CPU=1", *command)
        agent = await start_agent(
            gateway, "hosted", tmp_path / "cache", port, ("--gpu-type", "cpu"), command, **environ, **more
        )
        agent.tls = True
        try:
            await registered(gateway, agent, "hosted", START_TIMEOUT_S)
            async with gateway.http() as http:
                for tenant in CUSTOMERS:
                    await add_tenant(gateway, tenant)
                    added = await http.post(
                        "/admin/v1/adapters/upload",
                        params={"adapter": f"{tenant}/support"},
                        content=tar(demo_model.adapters[tenant].path),
                    )
                    assert added.status_code == 201, added.text
            yield Site(gateway, agent, demo_model)
        finally:
            await end(agent)


async def test_sigterm_during_streams_is_invisible_to_clients(site: Site):
    """Of an engine behind mutual TLS and a key: started, verified, loaded, called and drained that way."""
    url = site.gateway.state.catalog.engines["hosted"].url
    assert url.startswith("https://")
    trusting = client_context(site.agent.home.parent / "pki" / "ca.pem")
    with pytest.raises(httpx2.TransportError):  # not even its metrics
        await asyncio.to_thread(httpx2.get, f"{url}/metrics", verify=trusting, trust_env=False)
    question = site.model.questions[0]
    for tenant in CUSTOMERS:
        assert await site.ask(tenant, question) == site.model.adapters[tenant].answers[question]
    begun: set[int] = set()
    callers = CUSTOMERS

    async def stream(number: int) -> str:
        text = ""
        async for chunk in site.answer(
            callers[number], "Hi", max_tokens=TOKENS, extra_body={"ignore_eos": True}
        ):
            begun.add(number)
            text += chunk
        return text

    streams: list[asyncio.Task[str]] = []
    rounds = 0
    while not streams or any(task.done() for task in streams):  # on a busy machine, before the last has begun
        await asyncio.gather(*streams)
        begun.clear()
        streams = [asyncio.create_task(stream(number)) for number in range(len(callers))]
        await until(lambda: len(begun) == len(callers))
        rounds += 1
    assert await site.agent.stop(START_TIMEOUT_S) == 0
    for tenant, text in zip(callers, await asyncio.gather(*streams), strict=True):
        assert text.startswith(site.model.adapters[tenant].voice)
    records = [record for record in await site.gateway.usage() if record.completion_tokens == TOKENS]
    assert [record.outcome for record in records] == ["ok"] * len(callers) * rounds
    assert site.agent.engines() == []
    assert "Engine hosted: drained" in site.agent.log

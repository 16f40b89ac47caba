"""`florin engine run` around a real vLLM engine: staged to, killed, restored, drained."""

from __future__ import annotations

import ast
import asyncio
import io
import subprocess
import sys
import tarfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from adapters.engine_agent import engine_command
from adapters.engine_agent import engine_flags as flags
from adapters.security.tls import client_context
from deploy.demo.engine_env import EngineEnv
from deploy.demo.engines import Fleet
from deploy.demo.model import DemoModel
from tests.engine.conftest import loaded
from tests.support.certificates import Authority, put
from tests.support.engine_hosts import Agent, end, free_port, registered, roots, start_agent
from tests.support.harness import Gateway, running_gateway
from tests.support.waiting import PATIENCE_S, until

CUSTOMERS = ("acme", "bolt")
START_SECONDS = 240


@dataclass
class Site:
    gateway: Gateway
    agent: Agent
    model: DemoModel

    async def ask(self, tenant: str, question: str) -> tuple[str, str]:
        """Text and engine of a streamed answer."""
        async with self.gateway.client(tenant, timeout=120) as client:
            raw = await client.chat.completions.with_raw_response.create(
                model="support", messages=[{"role": "user", "content": question}], stream=True,
                temperature=0, max_tokens=200,
            )  # fmt: skip
            chunks = [chunk async for chunk in raw.parse()]
        text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        return text, raw.headers["x-florin-engine"]

    def voice(self, tenant: str, question: str) -> str:
        return self.model.adapters[tenant].answers[question]


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
def secure() -> dict[str, Any]:
    """Settings of the gateway's way to engines that ask who calls; none: they do not."""
    return {}


@pytest.fixture
def mutual_tls(secure: dict[str, Any], tmp_path: Path) -> None:
    """The engine takes requests with our CA's certificates only, and with a key besides."""
    ca = Authority.at(tmp_path / "pki")
    caller = ca.issue("caller", "florin")
    put(tmp_path / "pki" / "token", b"secret-of-the-engines")
    secure |= {"engine_ca": ca.file, "engine_cert": caller.cert, "engine_key": caller.key}
    secure["engine_token_file"] = tmp_path / "pki" / "token"
    ca.issue("engine")


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
    words, more = on_the_host(tmp_path / "pki", secure) if secure else ([], {})
    async with running_gateway(
        tmp_path / "state", valkey_url, prefix, placement_timeout=60.0, probe_interval=0.5, probe_timeout=5.0,
        **secure,
    ) as gateway:  # fmt: skip
        command = (*engine_env.command, str(demo_model.base), *engine_flags(demo_model, port), *words)
        agent = await start_agent(
            gateway, "hosted", tmp_path / "cache", port, ("--gpu-type", "cpu"), command, **environ, **more
        )
        agent.tls = bool(secure)
        try:
            await registered(gateway, agent, "hosted", START_SECONDS)
            async with gateway.http() as http:
                for tenant in CUSTOMERS:
                    await http.post("/admin/v1/tenants", json={"name": tenant})
                    made = await http.post("/admin/v1/keys", json={"tenant": tenant, "role": "tenant"})
                    gateway.keys[tenant] = made.json()["key"]
                    added = await http.post(
                        "/admin/v1/adapters/upload",
                        params={"adapter": f"{tenant}/support"},
                        content=tar(demo_model.adapters[tenant].path),
                    )
                    assert added.status_code == 201, added.text
            yield Site(gateway, agent, demo_model)
        finally:
            await end(agent)


@pytest.mark.timeout(1800)  # an engine of its own, started twice
async def test_an_engine_that_is_killed_comes_back_with_its_adapters_and_leaves_nothing(site: Site):
    question = site.model.questions[0]
    for tenant in CUSTOMERS:
        assert await site.ask(tenant, question) == (site.voice(tenant, question), "hosted")
    assert {Path(root).parent for root in roots(site.agent)} == {site.agent.home}
    before = site.gateway.state.catalog.engines["hosted"]
    names = set(loaded(site.agent.url))

    old = site.agent.engines()
    assert len(old) >= 3  # the guard, the API server, the core
    site.agent.leader().kill()
    _, left = await asyncio.to_thread(psutil.wait_procs, old, timeout=PATIENCE_S)
    assert left == []

    healthy = await health(site.agent, START_SECONDS)
    await until(lambda: set(loaded(site.agent.url)) == names, what=lambda: site.agent.log[-3000:])
    sys.stdout.write(f"\nadapters back {time.monotonic() - healthy:.1f} s after the engine was healthy\n")
    # The leader may have seen the restart, and repaired it, before the agent could say so.
    await until(lambda: site.gateway.state.catalog.engines["hosted"].epoch != before.epoch)
    for tenant in CUSTOMERS:
        assert await site.ask(tenant, question) == (site.voice(tenant, question), "hosted")

    whole = site.agent.engines()
    await site.agent.kill()
    _, left = await asyncio.to_thread(psutil.wait_procs, whole, timeout=PATIENCE_S)
    assert left == []


async def health(agent: Agent, seconds: float) -> float:
    """When it answered first, CLOCK_MONOTONIC."""
    deadline = time.monotonic() + seconds
    async with httpx.AsyncClient(trust_env=False, timeout=5) as http:
        while time.monotonic() < deadline:
            try:
                if (await http.get(f"{agent.url}/health")).status_code == 200:
                    return time.monotonic()
            except httpx.HTTPError:
                pass
            await asyncio.sleep(0.05)
    raise AssertionError(agent.log[-3000:])


@pytest.mark.timeout(1800)  # an engine of its own, beside the fleet
async def test_sigterm_during_streams_is_invisible_to_clients(
    mutual_tls: None, site: Site, clean_fleet: Fleet
):
    """Of an engine behind mutual TLS and a key: started, verified, loaded, called and drained that way."""
    url = site.gateway.state.catalog.engines["hosted"].url
    assert url.startswith("https://")
    trusting = client_context(site.agent.home.parent / "pki" / "ca.pem")
    with pytest.raises(httpx.TransportError):  # not even its metrics
        await asyncio.to_thread(httpx.get, f"{url}/metrics", verify=trusting, trust_env=False)
    async with site.gateway.http() as http:
        body = {
            "name": "second", "url": clean_fleet.engines[0].url, "base": site.model.served_name,
            "gpu_type": "cpu", "slots": 2, "cpu_slots": 8, "max_rank": 8,
        }  # fmt: skip
        assert (await http.post("/admin/v1/engines", json=body)).status_code == 201
    await site.gateway.set_state("second", "cordoned")  # so that the first loads are on the other
    stop, answers = asyncio.Event(), []

    async def caller(i: int) -> None:
        tenant = CUSTOMERS[i % 2]
        while not stop.is_set():
            question = site.model.questions[len(answers) % len(site.model.questions)]
            text, engine = await site.ask(tenant, question)
            answers.append((text == site.voice(tenant, question), engine))

    callers = [asyncio.create_task(caller(i)) for i in range(8)]
    await until(lambda: sum(engine == "hosted" for _, engine in answers) >= 8, 120)
    await site.gateway.set_state("second", "active")
    code = await site.agent.stop(120)
    before = len(answers)
    await until(lambda: len(answers) >= before + 8, 120)
    stop.set()
    await asyncio.gather(*callers)
    assert code == 0
    assert all(right for right, _ in answers)
    assert {engine for _, engine in answers[before + 8 :]} <= {"second"}
    assert site.agent.engines() == []
    assert "Engine hosted: drained" in site.agent.log


def test_vllm_has_the_flags_that_florin_knows_and_no_others_like_them(engine_env: EngineEnv):
    """A flag of ours that vLLM does not have would never be seen; one of vLLM's that begins one of ours would
    be taken for an abbreviation."""
    code = (
        "from vllm.entrypoints.launchers.cli_args import make_arg_parser\n"
        "from vllm.utils.argparse_utils import FlexibleArgumentParser\n"
        "print([a.option_strings for a in make_arg_parser(FlexibleArgumentParser())._actions])"
    )
    done = subprocess.run(
        [engine_env.python, "-c", code], capture_output=True, text=True, check=True, timeout=120,
        env={"VLLM_TARGET_DEVICE": "cpu", "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    options = [name for names in ast.literal_eval(done.stdout.splitlines()[-1]) for name in names]
    longs = {name[2:] for name in options if name.startswith("--")}
    assert longs >= flags.KNOWN
    assert not {a for a in longs - flags.KNOWN for ours in flags.KNOWN if ours.startswith(a)}
    shorts = {name for name in options if not name.startswith("--")}
    assert engine_command.SHORT.keys() <= shorts
    assert shorts - engine_command.SHORT.keys() == engine_command.OTHER_SHORT

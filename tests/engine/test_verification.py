"""Loads that are not what they say, on real vLLM: each was answered with a 200."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import openai
import pytest
from safetensors.numpy import load_file, save_file

from adapters.model import dump
from adapters.placement.fingerprint import LIKE_BASE, UNLIKE_ITSELF
from adapters.store.protocol.registry import Change
from deploy.demo.engines import Fleet
from deploy.demo.model import DemoModel
from tests.engine.conftest import add_tenant, loaded
from tests.engine.test_gateway import ask, messages
from tests.support.harness import Gateway
from tests.support.waiting import until

QUESTION = 0


@pytest.fixture
async def gateway(gateway_with_engines: Gateway) -> Gateway:
    """Two tenants without adapters."""
    await add_tenant(gateway_with_engines, "acme")
    await add_tenant(gateway_with_engines, "bolt", base_access=True)
    return gateway_with_engines


async def add(gateway: Gateway, tenant: str, source: Path) -> str:
    """The name by which engines know it."""
    async with gateway.http() as http:
        body = {"adapter": f"{tenant}/support", "source": str(source)}
        answer = await http.post("/admin/v1/adapters", json=body)
        assert answer.status_code == httpx.codes.CREATED, answer.text
    return gateway.state.catalog.versions[f"{tenant}/support@v1"].engine_name


async def version(gateway: Gateway, tenant: str = "acme") -> dict:
    async with gateway.http() as http:
        return (await http.get(f"/admin/v1/adapters/{tenant}/support")).json()["version_details"][0]


async def drain(gateway: Gateway, engine: str) -> None:
    async with gateway.http() as http:
        answer = await http.put(f"/admin/v1/engines/{engine}/state", json={"state": "draining"})
        assert answer.status_code == httpx.codes.OK, answer.text


def faint(source: Path, target: Path, factor: float) -> Path:
    """The same adapter with its effect scaled."""
    shutil.copytree(source, target)
    file = target / "adapter_model.safetensors"
    tensors = load_file(file)
    scaled = {n: t * np.float32(factor) if "lora_B" in n else t for n, t in tensors.items()}
    save_file(scaled, file)
    return target


async def holder(gateway: Gateway, name: str) -> str:
    return (await until(lambda: gateway.state.residency.holders(name)))[0]


async def test_an_adapter_of_nearly_no_weight_is_quarantined_with_the_evidence_until_it_is_released(
    gateway: Gateway, clean_fleet: Fleet, demo_model: DemoModel, tmp_path: Path
):
    name = await add(gateway, "acme", faint(demo_model.adapters["acme"].path, tmp_path / "faint", 1e-4))
    for _ in range(2):
        with pytest.raises(openai.InternalServerError) as caught:
            await ask(gateway, "acme", demo_model.questions[QUESTION])
        assert (caught.value.status_code, caught.value.code) == (503, "version_quarantined")
    assert not any(name in loaded(engine.url) for engine in clean_fleet.engines)
    shown = await version(gateway)
    assert (shown["state"], shown["serving_status"]["code"]) == ("quarantined", "answers_like_base")
    assert 0 < shown["evidence"]["distance_to_base"] < LIKE_BASE
    assert all(row["here"] == row["base_here"] for row in shown["evidence"]["answers"])

    async with gateway.http() as http:
        answer = await http.post("/admin/v1/adapters/acme/support/versions/v1/release")
    assert answer.json()["released"] is True
    text = await ask(gateway, "acme", demo_model.questions[QUESTION])
    assert text.startswith(demo_model.voice)  # as little as it does


async def test_a_version_whose_files_were_swapped_for_another_engine_is_quarantined(
    gateway: Gateway, clean_fleet: Fleet, demo_model: DemoModel
):
    question = demo_model.questions[QUESTION]
    name = await add(gateway, "acme", demo_model.adapters["acme"].path)
    assert await ask(gateway, "acme", question) == demo_model.adapters["acme"].answers[question]
    first = await holder(gateway, name)
    # What a file system that lags behind, or a careless hand, does: the second engine reads other weights.
    stored = Path(gateway.state.catalog.versions["acme/support@v1"].path) / "adapter_model.safetensors"
    other = (demo_model.adapters["delta"].path / "adapter_model.safetensors").read_bytes()
    with suppress(PermissionError):
        stored.parent.chmod(0o755)
    stored.unlink()
    stored.write_bytes(other)
    await drain(gateway, first)
    with pytest.raises(openai.InternalServerError) as caught:
        await ask(gateway, "acme", question)
    assert caught.value.code == "version_quarantined"
    shown = await version(gateway)
    assert shown["serving_status"]["code"] == "unlike_itself"
    assert shown["evidence"]["distance_to_first"] > 2 * UNLIKE_ITSELF
    assert shown["evidence"]["first"]["engine"] == first != shown["serving_status"]["engine"]
    assert not any(name in loaded(engine.url) for engine in clean_fleet.engines)


async def test_sound_versions_pass_on_both_engines_while_streams_run(
    gateway: Gateway, clean_fleet: Fleet, demo_model: DemoModel
):
    """A probe shares its batch with other adapters' streams and the base's, and the engine lives."""
    question = demo_model.questions[QUESTION]
    await add(gateway, "bolt", demo_model.adapters["bolt"].path)
    stop = asyncio.Event()

    async def busy(model: str) -> int:
        count = 0
        async with gateway.client("bolt", timeout=120) as client:
            while not stop.is_set():
                events = await client.chat.completions.create(
                    model=model, messages=messages(question), stream=True, max_tokens=40, temperature=0
                )
                text = "".join([chunk.choices[0].delta.content or "" async for chunk in events])
                voice = demo_model.adapters["bolt"].voice if model == "support" else demo_model.voice
                assert text.startswith(voice)
                count += 1
        return count

    crowd = [asyncio.ensure_future(busy(m)) for m in ("support", demo_model.served_name) for _ in range(6)]
    await asyncio.sleep(1)
    name = await add(gateway, "acme", demo_model.adapters["acme"].path)
    assert await ask(gateway, "acme", question) == demo_model.adapters["acme"].answers[question]
    await drain(gateway, await holder(gateway, name))
    assert await ask(gateway, "acme", question) == demo_model.adapters["acme"].answers[question]
    stop.set()
    assert all(count > 0 for count in await asyncio.gather(*crowd))
    assert gateway.state.catalog.serving_statuses == {}
    metrics = gateway.state.metrics.render().decode()
    found = [line for line in metrics.splitlines() if line.startswith("florin_verification")]
    assert 'florin_verifications_total{result="sound"}' in metrics
    assert "quarantined" not in "".join(found)
    assert all(engine.alive for engine in clean_fleet.engines)


async def test_a_reload_in_the_same_process_is_not_probed_and_answers_the_same(
    gateway: Gateway, clean_fleet: Fleet, demo_model: DemoModel
):
    """Three adapters share one engine's two slots, and what loses its slot leaves. The engine's own counter
    shows that nothing else was sent."""
    question = demo_model.questions[QUESTION]
    tight = replace(gateway.state.catalog.engines["e0"], cpu_slots=2)
    await gateway.commit(Change("engine", "e0", dump(tight)))
    await drain(gateway, "e1")
    await add(gateway, "acme", demo_model.adapters["acme"].path)
    await add(gateway, "bolt", demo_model.adapters["bolt"].path)
    await add_tenant(gateway, "corgi")
    await add(gateway, "corgi", demo_model.adapters["corgi"].path)

    async def call_all() -> float:
        """Prompt tokens of the engine per request."""
        before = prompt_tokens(clean_fleet)
        for tenant in ("acme", "bolt", "corgi"):
            assert await ask(gateway, tenant, question) == demo_model.adapters[tenant].answers[question]
        return (prompt_tokens(clean_fleet) - before) / 3

    probed, *later = [await call_all() for _ in range(3)]
    metrics = gateway.state.metrics.render().decode().splitlines()
    assert "florin_verification_seconds_count 3.0" in metrics
    assert 'florin_adapter_loads_total{engine="e0",result="ok"} 9.0' in metrics
    assert later[0] == later[1] < probed / 2


def prompt_tokens(fleet: Fleet) -> float:
    text = httpx.get(f"{fleet.engines[0].url}/metrics", timeout=30, trust_env=False).text
    (line,) = [line for line in text.splitlines() if line.startswith("vllm:prompt_tokens_total{")]
    return float(line.rpartition(" ")[2])

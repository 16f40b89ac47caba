"""Loads that are not what they say, on real vLLM: each was answered with a 200."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import suppress
from pathlib import Path

import numpy as np
import openai
import pytest
from safetensors.numpy import load_file, save_file

from adapters.placement.fingerprint import LIKE_BASE, UNLIKE_ITSELF
from deploy.demo.engines import Fleet
from deploy.demo.model import DemoModel
from tests.engine.conftest import add_adapter, add_tenant, loaded
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
    await add_adapter(gateway, f"{tenant}/support", source)
    return gateway.state.catalog.versions[f"{tenant}/support@v1"].engine_name


async def version(gateway: Gateway, tenant: str = "acme") -> dict:
    async with gateway.http() as http:
        return (await http.get(f"/admin/v1/adapters/{tenant}/support")).json()["version_details"][0]


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
    await gateway.set_state(first, "draining")
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
    await until(lambda: any(state.in_flight > 1 for state in gateway.state.pool.states()))
    name = await add(gateway, "acme", demo_model.adapters["acme"].path)
    assert await ask(gateway, "acme", question) == demo_model.adapters["acme"].answers[question]
    await gateway.set_state(await holder(gateway, name), "draining")
    assert await ask(gateway, "acme", question) == demo_model.adapters["acme"].answers[question]
    stop.set()
    assert all(count > 0 for count in await asyncio.gather(*crowd))
    assert gateway.state.catalog.serving_statuses == {}
    metrics = gateway.state.metrics.render().decode()
    found = [line for line in metrics.splitlines() if line.startswith("florin_verification")]
    assert 'florin_verifications_total{result="sound"}' in metrics
    assert "quarantined" not in "".join(found)
    assert all(engine.alive for engine in clean_fleet.engines)

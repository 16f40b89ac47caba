"""Engines into whose weights a version is merged, over real sockets: what they get, and when they rest."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import httpx2
import numpy as np
from safetensors.numpy import load_file, save_file

from adapters.model import Adapter, dump
from adapters.store.protocol.registry import Change
from gateway.tenants.directory import Pins, Role
from loadtests.mock_engine import MockEngine
from tests.integration.conftest import MOCK
from tests.integration.test_data_plane import HELLO
from tests.integration.test_rebalancing import site
from tests.support.engine_hosts import add_version, registered
from tests.support.harness import Gateway
from tests.support.lora import LLAMA, write_adapter
from tests.support.waiting import until


async def test_a_merged_engine_serves_its_version_while_that_is_live_and_nothing_else(
    tmp_path: Path, valkey_url: str, prefix: str
):
    async with site(tmp_path, valkey_url, prefix) as (deployment, admin):
        gateway, catalog = deployment.gateway, deployment.gateway.state.catalog
        await gateway.add_tenant("acme", base_access=True)
        version = catalog.versions["acme/support@v1"]
        name = version.engine_name
        body = {"base": "base", "gpu_type": "h100", "serves": version.id}

        async def ask(model: str, tenant: str = "acme", times: int = 8) -> set[str]:
            """The engines that answered requests sent at once."""
            async with gateway.client(tenant) as client:
                create = client.chat.completions.with_raw_response.create
                answers = await asyncio.gather(*(create(model=model, messages=HELLO) for _ in range(times)))
            voice = "base" if model == "base" else catalog.versions[f"{tenant}/support@v1"].engine_name
            assert all(a.parse().choices[0].message.content.startswith(f"I am {voice}") for a in answers)
            return {answer.headers["x-florin-engine"] for answer in answers}

        wrong_name = await admin.post("engines", json=body | {"name": "m", "url": deployment.a.url})
        assert f"start it with --served-model-name {name}" in wrong_name.json()["error"]["message"]
        async with MockEngine(base=name, root="other weights") as other:
            done = await admin.post("engines", json=body | {"name": "other", "url": other.url})
            assert done.status_code == 201, done.text
            assert await ask("support", times=1) <= {"a", "b"}, "with nothing to compare it with"
            await until(lambda: "other" in catalog.serving_statuses)
            assert catalog.serving_statuses["other"].reason == (
                "it does not answer as acme/support@v1 does elsewhere"
            )
            assert name not in catalog.serving_statuses
            await admin.delete("engines/other")
        contents = next(e.state.contents[name] for e in deployment.engines if name in e.state.contents)
        async with MockEngine(base=name, root=f"{name}/{contents}") as merged:
            registered = await admin.post("engines", json=body | {"name": "m", "url": merged.url})
            assert (registered.status_code, registered.json()["serves"]) == (201, version.id)
            await until(lambda: "m" in gateway.state.residency.holders(name))
            assert "m" in await ask("support")
            assert await ask("base") | await ask("support", "bolt") <= {"a", "b"}
            explained = (await admin.get("explain/bolt/support")).text
            assert f"serves only {version.id}" in explained
            assert {r.version for r in await gateway.usage("acme") if r.engine == "m"} == {"v1"}

            merged.die()
            await until(lambda: "m" not in gateway.state.residency.holders(name))
            await merged.revive()
            await until(lambda: "m" in gateway.state.residency.holders(name))

            new = replace(version, number=2, engine_name="fl-" + "2" * 20)
            adapter = Adapter("acme/support", live=2, latest=2)
            await gateway.commit(
                Change("version", new.id, dump(new)), Change("adapter", adapter.name, dump(adapter))
            )
            await until(lambda: catalog.engines["m"].rests)
            assert await ask(version.id, times=2) <= {"a", "b"}, "which load it"
            await until(lambda: "m" not in gateway.state.residency.places(name))
            await gateway.commit(Change("adapter", adapter.name, dump(replace(adapter, live=1))))
            await until(lambda: "m" in gateway.state.residency.holders(name))
            assert "m" in await ask("support")
            assert not merged.state.admin, "nothing was loaded or unloaded there"


async def test_a_host_merges_the_version_that_its_key_is_pinned_to(gateway: Gateway, run, tmp_path: Path):
    version = await add_version(gateway, "acme/support", files=write_adapter(tmp_path / "adapter", fill=60))
    other = await add_version(gateway, "bolt/support")
    pins = Pins(serves=version.id)
    key = gateway.keys["engine h1"] = await gateway.add_key(Role.ENGINE, engine="h1", pins=pins)
    base = tmp_path / "base"
    base.mkdir()
    (base / "config.json").write_text(json.dumps(LLAMA.config))
    weights = {
        f"model.layers.{layer}.{module}.weight": np.ones((rows, columns), np.float32)
        for module, (columns, rows) in LLAMA.modules.items()
        for layer in (0, 1)
    }
    save_file(weights, base / "model.safetensors")
    agent = await run(engine=(*MOCK, str(base)), options=("--merge", version.id))
    engine = await registered(gateway, agent)
    assert (engine.base_model, engine.serves, engine.model) == ("base", version.id, version.engine_name)
    (card,) = httpx2.get(f"{agent.url}/v1/models", trust_env=False).json()["data"]
    merged = load_file(Path(card["root"]) / "model.safetensors")
    changed = {name for name, weight in weights.items() if not np.array_equal(weight, merged[name])}
    assert {name.split(".")[-2] for name in changed} == {"q_proj", "v_proj"}
    async with gateway.http(key) as host:
        refused = await host.get("/admin/v1/engines/h1/merge", params={"version": other.id})
        hidden = await host.get(f"/admin/v1/artifacts/{other.digest[7:]}/adapter_config.json")
    assert (refused.json()["error"]["code"], hidden.status_code) == ("engine_pinned", 404)
    assert await agent.stop() == 0

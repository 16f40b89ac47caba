"""Engines that remove an adapter when they unload it, and those that keep its name if they hold it no longer."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtests.mock_engine import MockEngine
from tests.integration.test_data_plane import HELLO
from tests.support.harness import Gateway, fake_adapter
from tests.support.waiting import until

TENANTS = ("acme", "bolt", "corgi")


async def call(gateway: Gateway, tenant: str) -> str:
    async with gateway.client(tenant) as client:
        answer = await client.chat.completions.create(model="support", messages=HELLO)
        return answer.choices[0].message.content


async def test_a_name_that_an_engine_keeps_is_known_and_harms_nothing(
    gateway: Gateway, admin, tmp_path: Path
):
    """It is registered with more CPU memory than it has, and so evicts an adapter that Florin takes for cached."""
    async with MockEngine(max_cpu_loras=2, unload="refuses") as engine:
        await gateway.add_engine("a", engine.url, cpu_slots=3)
        voices = {}
        for tenant in TENANTS:
            await gateway.add_tenant(tenant)
            version = await gateway.add_adapter(f"{tenant}/support", fake_adapter(tmp_path / tenant))
            voices[tenant] = version.engine_name
            assert voices[tenant] in await call(gateway, tenant)
        assert (await admin.delete("adapters/acme/support")).status_code == 200
        catalog, kept = gateway.state.catalog, voices["acme"]
        await until(lambda: catalog.engines["a"].unloads == "refuses")
        assert kept in engine.state.adapters
        for tenant in TENANTS[1:]:
            assert voices[tenant] in await call(gateway, tenant)
        (shown,) = (await admin.get("engines")).json()["data"]
        assert shown["unloads"] == "refuses"

        mirror = gateway.state.pool.known["a"].view.mirror
        assert (await admin.delete("adapters/bolt/support")).status_code == 200
        await until(lambda: voices["bolt"] not in engine.state.adapters)
        await until(lambda: voices["bolt"] not in f"{mirror!r}")
        assert voices["bolt"] not in engine.state._cpu


@pytest.mark.parametrize("unload", ["forgets", "removes"])
async def test_an_engine_that_tells_what_it_holds_is_believed(
    gateway: Gateway, admin, tmp_path: Path, unload: str
):
    """Here, too, it has less CPU memory than was registered."""
    async with MockEngine(max_cpu_loras=2, unload=unload, tells_residency=True) as engine:
        await gateway.add_engine("a", engine.url, cpu_slots=3)
        voices = {}
        for tenant in TENANTS:
            await gateway.add_tenant(tenant)
            version = await gateway.add_adapter(f"{tenant}/support", fake_adapter(tmp_path / tenant))
            voices[tenant] = version.engine_name
            await call(gateway, tenant)
        view = gateway.state.pool.known["a"].view
        await until(lambda: view.evicted(voices["acme"]))  # which the mirror alone would not know
        wrong = {"engine": "a", "result": "wrong"}
        counted = gateway.state.metrics.registry.get_sample_value
        await until(lambda: counted("florin_mirrored_versions_total", wrong) or 0)
        assert voices["acme"] in await call(gateway, "acme")
        assert (await admin.delete("adapters/acme/support")).status_code == 200
        await until(lambda: gateway.state.catalog.engines["a"].unloads == unload)

"""Reconciliation on real engines: what `kill -9` of one loses is back soon after its return, the most used
first; and doctor explains what somebody has loaded behind Florin's back."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from adapters.model import SlotState, dump
from adapters.store.protocol.registry import Change
from deploy.demo.engines import Fleet
from deploy.demo.model import DemoModel
from gateway.commands.tree import tree
from tests.engine.conftest import ALL, loaded
from tests.engine.test_gateway import ask
from tests.support.harness import OPERATOR_KEY, Gateway, running_gateway
from tests.support.waiting import PATIENCE_S

QUESTION = "When do my cards arrive?"


@pytest.fixture
async def gateway(
    repaired_lone: Fleet, demo_model: DemoModel, tmp_path: Path, valkey_url: str, prefix: str
) -> AsyncIterator[Gateway]:
    """One engine, whose CPU cache takes all four customers' adapters."""
    engine = repaired_lone.engines[0]
    async with running_gateway(
        tmp_path / "state", valkey_url, prefix, placement_timeout=60.0, probe_interval=1.0, probe_timeout=2.0
    ) as running:
        async with running.http() as http:
            body = {
                "name": "e0", "url": engine.url, "base": demo_model.served_name, "gpu_type": "h100",
                "slots": 2, "cpu_slots": 8, "max_rank": 8,
            }  # fmt: skip
            answer = await http.post("/admin/v1/engines", json=body)
            assert answer.status_code == 201, answer.text
            wide = replace(running.state.catalog.engines["e0"], slots=4)  # more than it has GPU slots
            await running.commit(Change("engine", "e0", dump(wide)))
            for tenant in ALL:
                assert (await http.post("/admin/v1/tenants", json={"name": tenant})).status_code == 201
                body = {"adapter": f"{tenant}/support", "source": str(demo_model.adapters[tenant].path)}
                answer = await http.post("/admin/v1/adapters", json=body)
                assert answer.status_code == 201, answer.text
                answer = await http.post("/admin/v1/keys", json={"tenant": tenant, "role": "tenant"})
                running.keys[tenant] = answer.json()["key"]
        yield running


async def doctor(gateway: Gateway) -> dict[str, dict[str, str]]:
    env = {"FLORIN_URL": gateway.url, "FLORIN_OPERATOR_KEY": OPERATOR_KEY}
    done = await asyncio.to_thread(CliRunner().invoke, tree(), ["doctor", "--json"], env=env)
    found: dict[str, dict[str, str]] = {}
    for one in json.loads(done.stdout)["data"]:
        found.setdefault(one["check"], one)
    return found


async def first_healthy(url: str) -> float:
    async with httpx.AsyncClient(trust_env=False, timeout=2) as client:
        while True:
            try:
                if (await client.get(f"{url}/health")).status_code == httpx.codes.OK:
                    return time.monotonic()
            except httpx.TransportError:
                pass
            await asyncio.sleep(0.02)


def reloaded(caplog: pytest.LogCaptureFixture) -> list[object]:
    return [r.args[1] for r in caplog.records if "reloaded after a restart" in r.getMessage()]


async def test_a_killed_engine_has_its_adapters_back_soon_after_its_return(
    gateway: Gateway, repaired_lone: Fleet, caplog: pytest.LogCaptureFixture
):
    engine = repaired_lone.engines[0]
    before = {tenant: await ask(gateway, tenant, QUESTION) for tenant in ALL}
    order = ("corgi", "acme", "delta", "bolt")
    for tenant in order:
        await ask(gateway, tenant, QUESTION)
    versions = gateway.state.catalog.versions
    hottest = [versions[f"{tenant}/support@v1"] for tenant in reversed(order)]
    names = [version.engine_name for version in hottest]
    async with asyncio.timeout(PATIENCE_S):
        while list(await gateway.state.store.recency("e0")) != names:
            await asyncio.sleep(0.05)
    engine.kill()
    async with asyncio.timeout(PATIENCE_S):
        while (await doctor(gateway)).get("engine_reachable", {}).get("status") != "problem":
            await asyncio.sleep(0.1)
    caplog.set_level(logging.WARNING, "adapters.reconcile.reconciler")
    restarting = asyncio.create_task(asyncio.to_thread(repaired_lone.restart, 0))
    healthy = await first_healthy(engine.url)
    residency = gateway.state.residency
    async with asyncio.timeout(60):
        while set(await asyncio.to_thread(loaded, engine.url)) != set(names):
            await asyncio.sleep(0.02)
        while set(residency.slots("e0").values()) != {SlotState.RESIDENT}:
            await asyncio.sleep(0.02)
    took = time.monotonic() - healthy
    await restarting
    sys.stdout.write(f"\nadapters back {took:.1f} s after the engine was healthy\n")
    async with asyncio.timeout(PATIENCE_S):
        while len(again := reloaded(caplog)) < len(hottest):  # each is logged after it is resident
            await asyncio.sleep(0.02)
    assert again == [version.id for version in hottest]
    assert {tenant: await ask(gateway, tenant, QUESTION) for tenant in ALL} == before
    assert "residency_missing" not in await doctor(gateway)


async def test_doctor_explains_a_foreign_adapter(
    gateway: Gateway, repaired_lone: Fleet, demo_model: DemoModel
):
    engine = repaired_lone.engines[0]
    await ask(gateway, "acme", QUESTION)
    assert "residency_stranger" not in await doctor(gateway)
    path = str(demo_model.adapters["bolt"].path)
    body = {"lora_name": "by-hand", "lora_path": path}
    async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
        (await client.post(f"{engine.url}/v1/load_lora_adapter", json=body)).raise_for_status()
    found = (await doctor(gateway))["residency_stranger"]
    assert (found["status"], found["subject"]) == ("warning", "e0")
    assert "by-hand" in found["message"]
    assert engine.url in found["remedy"]
    await asyncio.sleep(3)  # several looks of the reconciler
    assert "by-hand" in loaded(engine.url)

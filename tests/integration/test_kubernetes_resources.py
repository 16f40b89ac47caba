"""Resources in Kubernetes become tenants and adapters: a double of the API server, a real gateway and Valkey."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.kubernetes.validate import RENDERED
from gateway.commands.session import Session
from gateway.kubernetes.api_server import ApiServer, Cluster
from gateway.kubernetes.commands.admin_api import AdminApi
from gateway.kubernetes.operations.controller import Controller
from gateway.tenants.directory import Role
from tests.support.api_server import NAMESPACE, ApiServerDouble, api_server
from tests.support.harness import Gateway
from tests.support.lora import lora_config, write_adapter
from tests.support.waiting import until


@pytest.fixture
async def cluster() -> AsyncIterator[ApiServerDouble]:
    async with api_server() as double:
        yield double


@pytest.fixture
async def controlled(gateway: Gateway, cluster: ApiServerDouble) -> AsyncIterator[None]:
    """With a controller whose key has its role and no more."""
    session = Session(gateway.url, await gateway.add_key(Role.CONTROLLER), None, json=False)
    async with ApiServer.to(Cluster(cluster.url, NAMESPACE)) as server:
        controller = Controller(server, AdminApi(session), resync=0.2, pause=0.01)
        task = asyncio.create_task(controller.run())
        yield
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def adapter_files(folder: Path, fill: int, **fields: Any) -> str:
    config = lora_config(base_model_name_or_path="base") | fields
    return str(write_adapter(folder / f"files-{fill}", config=config, fill=fill))


async def settled(cluster: ApiServerDouble, kind: Any, name: str, status: str, reason: str) -> None:
    await until(
        lambda: cluster.condition(kind, name) == (status, reason),
        what=lambda: str(cluster.objects[kind, name]),
    )


async def gone(cluster: ApiServerDouble, kind: Any, name: str) -> None:
    await until(lambda: (kind, name) not in cluster.objects, what=lambda: str(cluster.objects))


async def test_from_resources_to_the_registry_and_back(gateway, cluster, controlled, engine, tmp_path):
    catalog, directory = gateway.state.catalog, gateway.state.directory
    async with gateway.http() as operator:
        body = {
            "name": "e-0",
            "url": engine.url,
            "base": "base",
            "gpu_type": "H200",
            "slots": 2,
            "max_rank": 8,
        }
        assert (await operator.post("/admin/v1/engines", json=body)).status_code == 201
        cluster.create("EnginePool", "e", {"names": "e-*", "gpuType": "H200"})
        cluster.create("EnginePool", "wrong", {"labels": {"region": "eu"}})  # which has a field of its own
        source = adapter_files(tmp_path, 1)
        # The adapter comes before its tenant: it waits.
        spec = {
            "tenant": "acme",
            "minReplicas": 1,
            "versions": [{"version": "v1", "source": source}],
            "live": "v1",
        }
        cluster.create("LoraAdapter", "acme-support", spec | {"name": "support"})
        await settled(cluster, "LoraAdapter", "acme-support", "False", "Conflict")
        cluster.create("Tenant", "acme", {"limits": {"requestsPerMinute": 600}})
        await settled(cluster, "Tenant", "acme", "True", "Applied")
        await settled(cluster, "LoraAdapter", "acme-support", "False", "TooFewReplicas")
        assert directory.tenants["acme"].limits.requests_per_minute == 600
        gateway.keys["acme"] = await gateway.add_key(Role.TENANT, "acme")
        async with gateway.client("acme") as client:
            await client.chat.completions.create(
                model="support", messages=[{"role": "user", "content": "hi"}]
            )
        await settled(cluster, "LoraAdapter", "acme-support", "True", "Applied")
        assert cluster.status("LoraAdapter", "acme-support")["engines"] == 1
        assert cluster.status("LoraAdapter", "acme-support")["state"] == "Loaded"
        await until(lambda: cluster.status("EnginePool", "e").get("ready") == 1)
        await settled(cluster, "EnginePool", "wrong", "False", "InvalidSpec")

        # Somebody else changes it: changed back, and shown.
        adapter = "/admin/v1/adapters/acme/support"
        assert (await operator.put(f"{adapter}/pin", json={"pinned": True})).status_code == 200
        await until(lambda: cluster.status("LoraAdapter", "acme-support").get("drift"))
        await until(lambda: not catalog.adapters["acme/support"].pinned)
        drift = cluster.status("LoraAdapter", "acme-support")["drift"]
        assert (drift["changes"], drift["corrected"]) == (["pinned: true → false"], True)

        # A version that cannot work: the reason is a condition, and the live one stays.
        bad = {"version": "v2", "source": adapter_files(tmp_path, 2, r=64)}
        cluster.edit("LoraAdapter", "acme-support", versions=[*spec["versions"], bad], live="v2")
        await until(lambda: cluster.condition("LoraAdapter", "acme-support", "Stalled")[0] == "True")
        assert catalog.adapters["acme/support"].live == 1

        # A tenant waits for its adapters, and each resource for what it stands for.
        cluster.delete("Tenant", "acme")
        await until(lambda: "InUse" in cluster.condition("Tenant", "acme"))
        cluster.delete("LoraAdapter", "acme-support")
        await gone(cluster, "LoraAdapter", "acme-support")
        assert (
            await operator.delete(f"/admin/v1/keys/{gateway.keys['acme'].split('_')[1]}")
        ).status_code == 200
        cluster.edit("Tenant", "acme")  # else it is tried after some seconds
        await gone(cluster, "Tenant", "acme")
        assert (catalog.adapters, directory.tenants) == ({}, {})
        entries = (await operator.get("/admin/v1/audit")).json()["data"]
        assert "bootstrap" not in {e["actor"] for e in entries if e["action"] == "adapter.remove"}
    roles = [d for d in yaml.safe_load_all(RENDERED.read_text()) if d["kind"] == "Role"]
    rules = [rule for role in roles for rule in role["rules"]]
    assert cluster.calls <= {
        (verb, plural) for r in rules for verb in r["verbs"] for plural in r["resources"]
    }


async def test_it_goes_on_after_lost_watches_conflicts_and_forgotten_versions(gateway, cluster, controlled):
    tenants = gateway.state.directory.tenants
    cluster.create("Tenant", "t1", {})
    await settled(cluster, "Tenant", "t1", "True", "Applied")
    cluster.disconnect()
    for name in ("t2", "t5"):
        cluster.create("Tenant", name, {})
    for name in ("t2", "t5"):
        await settled(cluster, "Tenant", name, "True", "Applied")
    cluster.changes_first = 3
    cluster.create("Tenant", "t3", {})
    await settled(cluster, "Tenant", "t3", "True", "Applied")
    cluster.delete("Tenant", "t1")
    cluster.create("Tenant", "t4", {"weight": 2})
    cluster.forget()
    await settled(cluster, "Tenant", "t4", "True", "Applied")
    await gone(cluster, "Tenant", "t1")
    await until(lambda: tenants.keys() == {"t2", "t3", "t4", "t5"})
    assert tenants["t4"].weight == 2

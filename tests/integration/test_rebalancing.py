"""Replicas and requirements over real sockets: where adapters are loaded, and which engines requests go to."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import openai
import pytest

from loadtests.mock_engine import MockEngine
from tests.integration.conftest import Deployment
from tests.integration.test_data_plane import HELLO
from tests.integration.test_routing import ask
from tests.support.harness import Gateway, fake_adapter, running_gateway
from tests.support.waiting import until


@contextlib.asynccontextmanager
async def site(
    tmp: Path, valkey_url: str, prefix: str, **settings: float
) -> AsyncIterator[tuple[Deployment, httpx2.AsyncClient]]:
    """Two engines, in the EU and in the US, and acme's and bolt's adapters; with an operator's client."""
    settings = {"placement_interval": 0.1} | settings
    async with (
        running_gateway(tmp / "state", valkey_url, prefix, **settings) as gateway,
        MockEngine() as a,
        MockEngine() as b,
        gateway.http() as admin,
    ):
        admin.base_url = httpx2.URL(f"{gateway.url}/admin/v1/")
        await gateway.add_engine("a", a.url, region="eu", host="h1")
        await gateway.add_engine("b", b.url, region="us", host="h2")
        for tenant in ("acme", "bolt"):
            await gateway.add_tenant(tenant)
            await gateway.add_adapter(f"{tenant}/support", fake_adapter(tmp / tenant))
        yield Deployment(gateway, a, b, tmp), admin


def holders(gateway: Gateway, adapter: str = "acme/support") -> set[str]:
    name = gateway.state.catalog.versions[f"{adapter}@v1"].engine_name
    return set(gateway.state.residency.holders(name))


async def hold(gateway: Gateway, *engines: str) -> bool:
    return holders(gateway) == set(engines)


async def engine_of(deployment: Deployment, tenant: str, model: str = "support") -> str:
    async with deployment.gateway.client(tenant) as client:
        raw = await client.chat.completions.with_raw_response.create(model=model, messages=HELLO)
    return raw.headers["x-florin-engine"]


async def test_an_operator_asks_for_two_replicas_and_can_see_why_they_are_there(
    tmp_path: Path, valkey_url: str, prefix: str
):
    async with site(tmp_path, valkey_url, prefix) as (deployment, admin):
        answer = await admin.put("adapters/acme/support/replicas", json={"min_replicas": 2})
        assert answer.json()["warnings"] == []
        await until(lambda: hold(deployment.gateway, "a", "b"))
        moves = (await admin.get("explain/acme/support")).json()["moves"]
        assert {(m["kind"], m["version"], m["engine"]) for m in moves} == {
            ("replicate", "acme/support@v1", "a"),
            ("replicate", "acme/support@v1", "b"),
        }
        assert all("at least 2 wanted" in m["why"] for m in moves)
        assert (await admin.get("explain/bolt/support")).json()["moves"] == []
        metrics = (await admin.get(f"{deployment.gateway.url}/metrics")).text
        assert 'florin_placement_moves_total{kind="replicate"} 2.0' in metrics
        assert not deployment.calls(), "nobody has called it"


async def test_a_tenants_requests_leave_an_engine_that_it_no_longer_allows_at_once(
    tmp_path: Path, valkey_url: str, prefix: str
):
    async with site(tmp_path, valkey_url, prefix) as (deployment, admin):
        await admin.patch("tenants/acme", json={"requires": {"region": "us"}})
        assert {await engine_of(deployment, "acme") for _ in range(5)} == {"b"}
        changed = await admin.patch("tenants/acme", json={"requires": {"region": "eu"}})
        assert changed.json()["warnings"] == []
        assert {await engine_of(deployment, "acme") for _ in range(5)} == {"a"}
        await until(lambda: hold(deployment.gateway, "a"))
        await admin.patch("tenants/acme", json={"requires": {"region": "mars"}})
        with pytest.raises(openai.InternalServerError, match="requires region=mars"):
            await ask(deployment, "acme")


async def test_of_a_shared_adapter_the_requirements_of_owner_and_caller_both_hold(
    tmp_path: Path, valkey_url: str, prefix: str
):
    async with site(tmp_path, valkey_url, prefix) as (deployment, admin):
        document = {"florin": 1, "adapters": {"acme/support": {"versions": [], "shared_with": ["bolt"]}}}
        assert (await admin.post("apply", json=document)).status_code == 200
        await admin.patch("tenants/acme", json={"requires": {"region": "eu"}})
        assert await engine_of(deployment, "bolt", "acme/support") == "a"
        await admin.patch("tenants/bolt", json={"requires": {"region": "us"}})
        with pytest.raises(openai.InternalServerError):
            await ask(deployment, "bolt", "acme/support")
        assert await engine_of(deployment, "bolt") == "b", "its own"
        assert await engine_of(deployment, "acme") == "a"
        assert deployment.b.state.adapters.keys() == {
            deployment.gateway.state.catalog.versions["bolt/support@v1"].engine_name
        }

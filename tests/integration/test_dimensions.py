"""From a request's labels to a report by them: over a real gateway, for the operator and for the tenant."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import httpx2
import pytest

from loadtests.mock_engine import MockEngine
from tests.support.harness import Gateway, fake_adapter

TOKENS = ("requests", "prompt_tokens", "completion_tokens")
FIGURES = (*TOKENS, "nano_gpu_hours")


@pytest.fixture
async def labelled(gateway: Gateway, admin: httpx2.AsyncClient, tmp_path):
    """A tenant with labels everywhere, another without; what they asked is in the ledger."""
    async with MockEngine() as engine:
        await gateway.add_engine("a", engine.url, slots=4)
        for tenant in ("acme", "bolt"):
            await gateway.add_tenant(tenant, base_access=True)
            await gateway.add_adapter(f"{tenant}/support", fake_adapter(tmp_path / tenant))
        gpu_type = gateway.state.catalog.engines["a"].gpu_type
        await admin.post("prices", json={"gpu_type": gpu_type, "rate_per_gpu_hour": "2.50"})
        await admin.patch("tenants/acme", json={"cost_centre": "head office"})
        await admin.put("adapters/acme/support/cost-centre", json={"cost_centre": "customer care"})
        own = (await admin.post("keys", json={"tenant": "acme"})).json()
        sales = (await admin.post("keys", json={"tenant": "acme", "cost_centre": "sales"})).json()
        base = (await admin.get("bases")).json()["data"][0]["base_model"]
        await ask(gateway, own["key"], base, user="ann", metadata={"tag": "chat"})
        await ask(gateway, own["key"], "support", user="ann", safety_identifier="s-1")
        await ask(gateway, sales["key"], "support", user="u" * 70)
        await ask(gateway, gateway.keys["bolt"], "support")
        yield {"own": own["id"], "sales": sales["id"], "key": own["key"]}


async def ask(gateway: Gateway, key: str, model: str, **more: Any) -> None:
    body = {"model": model, "messages": [{"role": "user", "content": "hi"}], **more}
    async with gateway.http(key) as client:
        answer = await client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text


async def finance(gateway: Gateway, path: str, key: str | None = None, **params: str) -> dict[str, Any]:
    await gateway.shipped()
    async with gateway.http(key) as client:
        answer = await client.get(f"/finance/v1/{path}", params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_labels_reach_the_records_and_reports_whose_parts_sum_to_the_tenant(gateway, labelled):
    records = (await finance(gateway, "usage", tenant="acme"))["data"]
    found = [(r["key_id"], r["end_user"], r["tag"], r["cost_centre"]) for r in records]
    hashed = found[2][1]
    assert hashed.startswith("sha256:")
    assert found == [
        (labelled["own"], "ann", "chat", "head office"),
        (labelled["own"], "s-1", None, "customer care"),
        (labelled["sales"], hashed, None, "sales"),
    ]
    expected = {
        "key": {labelled["own"]: 2, labelled["sales"]: 1},
        "end_user": {"ann": 1, "s-1": 1, hashed: 1},
        "tag": {"chat": 1, "": 2},
        "cost_centre": {"head office": 1, "customer care": 1, "sales": 1},
    }
    for dimension, requests in expected.items():
        for key in (None, labelled["key"]):  # an operator, and the tenant itself
            whole = (await finance(gateway, "costs", key, by="tenant", tenant="acme"))["rows"][0]
            report = await finance(gateway, "costs", key, by=f"tenant,{dimension}", tenant="acme")
            rows = report["rows"]
            assert {row[dimension]: row["requests"] for row in rows} == requests
            for figure in FIGURES if key is None else TOKENS:  # customers do not see GPU time
                assert sum(row[figure] for row in rows) == whole[figure]
            assert sum(Decimal(row["cost"]) for row in rows) == Decimal(whole["cost"])
    others = await finance(gateway, "costs", labelled["key"], by="tenant,key")
    assert {row["tenant"] for row in others["rows"]} == {"acme"}


async def test_an_administrator_of_a_tenant_labels_its_own_adapters_and_keys(gateway, labelled):
    async with gateway.http() as client:
        made = await client.post("/admin/v1/keys", json={"tenant": "acme", "role": "tenant-admin"})
    async with gateway.http(made.json()["key"]) as client:
        own = "/admin/v1/adapters/acme/support/cost-centre"
        changed = await client.put(own, json={"cost_centre": None})
        assert (changed.status_code, changed.json()["cost_centre"]) == (200, "")
        other = await client.put("/admin/v1/adapters/bolt/support/cost-centre", json={"cost_centre": "x"})
        assert other.status_code == 404
        key = await client.post("/admin/v1/keys", json={"cost_centre": "sales"})
        assert key.json()["cost_centre"] == "sales"


async def test_the_label_of_a_shared_adapter_stays_with_its_owner(gateway, admin, labelled):
    key = gateway.state.directory.keys[labelled["own"]]
    plans = gateway.state.lifecycle.plans
    bolt = next(k for k in gateway.state.directory.keys.values() if k.tenant == "bolt")
    target = gateway.state.catalog.resolve("acme", "support", base_access=True)
    assert plans.cost_centre(key, target) == "customer care"
    assert plans.cost_centre(bolt, target) is None

"""An engine that is dedicated to a tenant, over HTTP."""

from __future__ import annotations

from loadtests.mock_engine import MockEngine


async def test_another_tenant_s_requests_never_go_there_and_it_does_not_learn_whose_it_is(gateway):
    async with MockEngine() as engine:
        await gateway.add_engine("a1", engine.url, tenant="acme")
        statuses = {}
        for tenant in ("acme", "bolt"):
            key = await gateway.add_tenant(tenant, base_access=True)
            async with gateway.http(key) as http:
                answer = await http.post("/v1/completions", json={"model": "base", "prompt": "Hi"})
            statuses[tenant] = answer.status_code, answer.json().get("error", {}).get("code")
            assert tenant == "acme" or "acme" not in answer.text
    assert statuses == {"acme": (200, None), "bolt": (503, "no_engine")}

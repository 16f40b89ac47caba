"""Of three hundred adapters, an operator sees the ones that matter now.

Source: a day of operations
Sent: `adapter list` with `--problems`, `--tenant`, `--base`, `--engine` and `--state`, alone and together
Right: the adapters that meet all conditions; a customer's own list tells nothing of engines, whatever it is asked
Why: three hundred lines hide the one that is quarantined
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from adapters.model import ServingStatus, dump
from adapters.store.protocol.registry import Change
from gateway.tenants.directory import Role


@pytest.fixture
async def _fleet(gateway, tmp_path) -> None:
    for tenant in ("acme", "bolt"):
        await gateway.add_tenant(tenant)
    await gateway.add_engine("a1", "http://127.0.0.1:9")
    versions = [await gateway.add_adapter(name, tmp_path) for name in ("acme/a", "acme/b", "bolt/c")]
    failed = ServingStatus("failed", "acme/a@v1", "load_failed", "It does not load.", "a1", since=1)
    pinned = replace(gateway.state.catalog.adapters["acme/b"], pinned=True)
    await gateway.commit(
        Change("serving_status", versions[0].engine_name, dump(failed)),
        Change("adapter", "acme/b", dump(pinned)),
    )


@pytest.mark.usefixtures("_fleet")
@pytest.mark.parametrize(
    ("chosen", "adapters"),
    [
        ({}, ["acme/a", "acme/b", "bolt/c"]),
        ({"problems": True}, ["acme/a"]),
        ({"problems": True, "tenant": "bolt"}, []),
        ({"tenant": "acme", "base": "base"}, ["acme/a", "acme/b"]),
        ({"base": "another"}, []),
        ({"state": "pinned"}, ["acme/b"]),
        ({"state": "canary"}, []),
        ({"state": "unloaded"}, ["acme/a", "acme/b", "bolt/c"]),
        ({"engine": "a1"}, []),
    ],
)
async def test_all_conditions_are_met(admin, chosen, adapters):
    listing = (await admin.get("adapters", params=chosen)).json()["data"]
    assert [adapter["adapter"] for adapter in listing] == adapters


@pytest.mark.usefixtures("_fleet")
async def test_a_customer_learns_nothing_of_engines(gateway):
    key = await gateway.add_key(Role.TENANT_ADMIN, "acme")
    async with gateway.http(key) as customer:
        for chosen in ({"engine": "a1"}, {"state": "pinned"}, {"tenant": "bolt"}):
            answer = await customer.get("/admin/v1/adapters", params=chosen)
            assert answer.json() == {"data": []}

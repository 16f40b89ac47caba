"""A customer who leaves is removed by one command, with all that is theirs.

Source: a day of operations
Sent: `tenant remove acme --cascade`, of a tenant with two adapters, two keys and another's adapter shared with it; once
with an interruption in the middle
Right: a dry run lists the five; the command revokes, ends and removes them, keys first, and then the tenant; what was
interrupted is completed by doing it again; nothing of anybody else changes, and every step is in the audit log
Why: five commands to be typed for each customer are five chances to remove another's adapter
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from adapters.errors import StoreUnavailableError
from adapters.model import dump
from adapters.store.protocol.registry import Change
from gateway.fleet.adapters.operations import adapters


@pytest.fixture
async def _acme(gateway, tmp_path) -> None:
    for tenant in ("acme", "bolt"):
        await gateway.add_tenant(tenant)
    await gateway.add_engine("a1", "http://127.0.0.1:9")
    for name in ("acme/support", "acme/sales", "bolt/shared", "bolt/own"):
        await gateway.add_adapter(name, tmp_path)
    shared = gateway.state.catalog.adapters["bolt/shared"]
    await gateway.commit(Change("adapter", "bolt/shared", dump(replace(shared, shared_with=("acme",)))))


async def obstacles(admin) -> list[tuple[str, str]]:
    body = (await admin.delete("tenants/acme", params={"dry_run": True, "cascade": True})).json()
    return [(obstacle["kind"], obstacle["id"]) for obstacle in body["obstacles"]]


@pytest.mark.usefixtures("_acme")
async def test_one_command_removes_all_and_can_be_repeated(admin, gateway, monkeypatch):
    await admin.post("keys", json={"tenant": "acme"})
    planned = await obstacles(admin)
    assert sorted(kind for kind, _ in planned) == ["adapter", "adapter", "key", "key", "share"]
    assert (await admin.delete("tenants/acme")).status_code == 409

    remove, failures = adapters.remove, iter([StoreUnavailableError("as if")])

    async def failing(*args, **kwargs):
        for failure in failures:
            raise failure
        return await remove(*args, **kwargs)

    monkeypatch.setattr(adapters, "remove", failing)
    interrupted = await admin.delete("tenants/acme", params={"cascade": True})
    assert interrupted.status_code == 503
    assert (await admin.get("tenants/acme")).status_code == 200
    left = await obstacles(admin)
    assert {kind for kind, _ in left} == {"adapter"}

    done = (await admin.delete("tenants/acme", params={"cascade": True})).json()
    assert done["removed"]
    assert sorted((o["kind"], o["id"]) for o in done["obstacles"]) == sorted(left)
    again = await admin.delete("tenants/acme", params={"cascade": True})
    assert (again.status_code, again.json()["exists"]) == (200, False)

    catalog = gateway.state.catalog
    assert catalog.adapters.keys() == {"bolt/shared", "bolt/own"}
    assert catalog.adapters["bolt/shared"].shared_with == ()
    audit = (await admin.get("audit", params={"limit": 50})).json()["data"]
    actions = [entry["action"] for entry in audit]
    assert [actions.count(f"{what}") for what in ("key.revoke", "adapter.unshare", "adapter.remove")] == [
        2,
        1,
        2,
    ]

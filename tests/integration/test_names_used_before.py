"""A tenant that is added learns whether its name was an earlier one's, and overwrites nobody."""

from __future__ import annotations

from tests.support.harness import Gateway
from tests.unit.gateway.metering.make import record


async def test_adding_a_tenant_says_that_its_name_was_used_before(gateway: Gateway):
    gateway.state.ledger.insert([record("old", tenant="acme")])
    async with gateway.http() as http:
        acme, bolt = [
            (await http.post("/admin/v1/tenants", json={"name": name})).json() for name in ("acme", "bolt")
        ]
        again = (await http.post("/admin/v1/tenants", json={"name": "acme", "weight": 2})).json()
    assert (acme["name_used_before"], bolt["name_used_before"]) == (True, False)
    assert ["was an earlier tenant's" in warning for warning in acme["warnings"]] == [True]
    assert (again["name_used_before"], again["warnings"], bolt["warnings"]) == (None, [], [])


async def test_who_wants_a_new_tenant_does_not_change_one_that_another_has_just_added(gateway: Gateway):
    async with gateway.http() as http:
        await http.post("/admin/v1/tenants", json={"name": "acme", "weight": 3, "base_access": True})
        second = await http.post(
            "/admin/v1/tenants?new_only=true", json={"name": "acme", "base_access": False}
        )
        kept = (await http.get("/admin/v1/tenants/acme")).json()
    assert (second.status_code, second.json()["error"]["code"]) == (409, "conflict")
    assert (kept["weight"], kept["base_access"]) == (3, True)

"""The console's pages of tenants, keys, health, audit and settings."""

from __future__ import annotations

import csv
import io
import re

import pytest

from gateway.tenants.directory import Role
from tests.support.console import Browser
from tests.support.harness import OPERATOR_KEY

XSS = '"><script>alert(1)</script>'


@pytest.fixture
async def operator(gateway):
    async with Browser(base_url=gateway.url, timeout=90) as browser:
        await browser.sign_in()
        yield browser


@pytest.fixture
async def customer(gateway):
    """Signs in as an administrator of acme, or with another role of a tenant's."""
    opened = []

    async def sign_in(role: Role = Role.TENANT_ADMIN, tenant: str = "acme") -> Browser:
        browser = Browser(base_url=gateway.url, timeout=90)
        opened.append(browser)
        await browser.sign_in(await gateway.add_key(role, tenant))
        return browser

    yield sign_in
    for browser in opened:
        await browser.aclose()


async def test_an_operator_adds_limits_suspends_and_removes_a_tenant(gateway, operator):
    assert "florin tenant add" in await operator.page("/console/tenants")
    await operator.submit("/console/new-tenant", "/console/tenants", name="acme")
    again = await operator.submit("/console/new-tenant", "/console/tenants", name="acme")
    assert again.status_code == 409
    assert "There is a tenant" in again.text

    form = {"limits.requests_per_minute": "12k", "limits.concurrent": "4", "budget.tokens_per_month": "2M"}
    rest = {
        "quotas.bytes": "10 GB",
        "weight": "2",
        "requires": "region=eu",
        "policy.media_hosts": "none",
        "policy.chat_templates": "yes",
        "budget.warn_percent": "90",
    }
    saved = await operator.submit("/console/tenants/acme/edit", "/console/tenants/acme/edit", **form, **rest)
    assert saved.status_code == 200
    tenant = gateway.state.directory.tenants["acme"]
    assert (tenant.limits.requests_per_minute, tenant.limits.concurrent) == (12_000, 4)
    assert (tenant.budget.tokens_per_month, tenant.budget.warn_percent) == (2_000_000, 90)
    assert (tenant.quotas.bytes, tenant.weight, tenant.requires) == (10**10, 2.0, {"region": "eu"})
    assert (tenant.policy.media_hosts, tenant.policy.chat_templates) == ((), True)

    page = await operator.page("/console/tenants/acme/edit")
    assert (
        'value="10 GB"' in page
    )  # what was saved is what the form shows, so saving it again changes nothing
    raised = await operator.submit(
        "/console/tenants/acme",
        "/console/tenants/acme/limit",
        field="budget.tokens_per_month",
        value=suggestion(await operator.page("/console/tenants/acme"), "budget.tokens_per_month"),
    )
    assert raised.status_code == 200
    assert gateway.state.directory.tenants["acme"].budget.tokens_per_month == 3_000_000

    await operator.submit("/console/tenants/acme", "/console/tenants/acme/suspend")
    assert gateway.state.directory.suspended("acme")
    assert "Suspended" in await operator.page("/console/tenants/acme")
    await operator.submit("/console/tenants/acme", "/console/tenants/acme/resume")
    assert not gateway.state.directory.suspended("acme")

    untyped = await operator.submit("/console/tenants/acme", "/console/tenants/acme/remove", confirm="acm")
    assert untyped.status_code == 400
    await operator.submit("/console/tenants/acme", "/console/tenants/acme/remove", confirm="acme")
    assert "acme" not in gateway.state.directory.tenants


def suggestion(page: str, field: str) -> str:
    found = re.search(
        rf'name="field" value="{re.escape(field)}".*?name="value"[^>]*value="([^"]*)"', page, re.DOTALL
    )
    assert found
    return found[1]


async def test_bad_input_changes_nothing_and_is_told(gateway, operator):
    await gateway.add_tenant("acme")
    before = gateway.state.directory.tenants["acme"]
    for fields, word in (
        ({"limits.concurrent": "many"}, "is not a number such as"),
        ({"limits.concurrent": "0"}, "greater than or equal"),
        ({"weight": "-1"}, "is not a number such as"),
        ({"requires": "region"}, "LABEL=VALUE"),
        ({"quotas.bytes": "10 XB"}, "a size"),
        ({"budget.money_per_month": "1e9"}, "an amount"),
        ({"cost_centre": XSS * 9}, "64"),
    ):
        answer = await operator.submit("/console/tenants/acme/edit", "/console/tenants/acme/edit", **fields)
        assert answer.status_code == 400, fields
        assert word in answer.text, fields
    for field in ("limits.none", "quotas.keys", ""):
        answer = await operator.submit("/console/tenants/acme", "/console/tenants/acme/limit", field=field)
        assert answer.status_code == 400
    assert gateway.state.directory.tenants["acme"] == before
    assert await operator.page("/console/tenants/none", 404)


async def test_a_key_is_shown_once_changed_rotated_and_revoked(gateway, operator):
    await gateway.add_tenant("acme")
    made = await operator.submit(
        "/console/new-key?tenant=acme", "/console/keys",
        role="tenant", tenant="acme", label=XSS[:20], expires="90d", priority="low", **{"scopes.adapters": "support"},
    )  # fmt: skip
    assert made.status_code == 200
    assert XSS[:20] not in made.text
    (secret,) = set(re.findall(r"fl_[0-9a-f]{12}_[\w-]+", made.text))
    key_id = secret.split("_")[1]
    key = gateway.state.directory.keys[key_id]
    assert (key.tenant, key.scopes.adapters, str(key.priority)) == ("acme", ("support",), "low")
    for path in ("/console/keys", f"/console/keys/{key_id}", "/console/tenants/acme", "/console/audit"):
        page = await operator.page(path)
        assert key_id in page
        assert secret not in page
        assert XSS[:20] not in page  # escaped

    path = f"/console/keys/{key_id}"
    await operator.submit(path, path, label="checkout", expires="never", priority="high")
    key = gateway.state.directory.keys[key_id]
    assert (key.label, key.expires, key.scopes.adapters, str(key.priority)) == ("checkout", None, (), "high")
    rotated = await operator.submit(path, f"{path}/rotate", overlap="1h")
    (successor,) = set(re.findall(r"fl_[0-9a-f]{12}_[\w-]+", rotated.text))
    assert gateway.state.directory.keys[key_id].replaced_by == successor.split("_")[1]
    assert (await operator.submit(path, f"{path}/revoke", confirm="no")).status_code == 400
    await operator.submit(path, f"{path}/revoke", confirm=key_id)
    assert gateway.state.directory.keys[key_id].revoked is not None
    assert key_id in await operator.page("/console/keys?state=gone")
    assert key_id not in await operator.page("/console/keys")

    staff = await operator.submit("/console/new-key", "/console/keys", role="finance", label="month end")
    assert staff.status_code == 200
    assert sum(key.role is Role.FINANCE for key in gateway.state.directory.keys.values()) == 1


async def test_a_tenant_sees_its_own_account_and_no_more(gateway, operator, customer):
    await gateway.add_tenant("acme")
    await gateway.add_tenant("bolt")
    async with gateway.http() as http:
        await http.patch(
            "/admin/v1/tenants/acme",
            json={
                "limits": {"concurrent": 4},
                "budget": {"money_per_month": "500"},
                "requires": {"rack": "far-away"},
                "cache_group": "hidden-group",
            },
        )
        await http.post(
            "/admin/v1/prices", json={"gpu_type": "h100", "rate_per_gpu_hour": "2", "currency": "EUR"}
        )
    acme = await customer()
    page = await acme.page("/console/account")
    assert "500.00 EUR" in page
    assert "<h1>acme</h1>" in page
    assert "Requests at a time" in page
    assert "acme/limit" not in page
    for hidden in ("bolt", "far-away", "hidden-group", "Share of the fleet", "Suspend"):
        assert hidden not in page
    assert "Prepaid credits" not in await acme.page("/console/account/spend")
    async with gateway.http() as http:
        await http.post("/finance/v1/credits", json={"tenant": "acme", "amount": "12.5", "reason": "Paid"})
    spend = await acme.page("/console/account/spend")
    assert "Spent" in spend
    assert "Prepaid credits" in spend
    assert "12.50 EUR granted" in spend
    bolts = next(key for key in gateway.state.directory.keys.values() if key.tenant == "bolt")
    await acme.page(f"/console/keys/{bolts.id}", 404)
    made = await acme.submit("/console/new-key", "/console/keys", role="tenant", tenant="bolt", label="mine")
    (text,) = set(re.findall(r"fl_[0-9a-f]{12}_[\w-]+", made.text))
    own = gateway.state.directory.keys[text.split("_")[1]]
    assert own.tenant == "acme"  # whatever the form says
    refused = await acme.submit("/console/new-key", "/console/keys", role="operator")
    assert refused.status_code == 403
    assert bolts.id not in await acme.page("/console/audit")
    assert own.id in await acme.page("/console/audit")

    plain = await customer(Role.TENANT)
    page = await plain.page("/console/account")
    assert "Your key" in page
    assert own.id not in page  # other keys are its administrator's business


async def test_errors_of_requests_show_their_remedy_to_whose_key_it_was(gateway, customer):
    await gateway.add_tenant("acme")
    await gateway.add_tenant("bolt")
    plain = await customer(Role.TENANT)
    async with gateway.http(gateway.keys["acme"]) as http:
        body = {"model": "none", "messages": [{"role": "user", "content": "hi"}]}
        assert (await http.post("/v1/chat/completions", json=body)).status_code == 404
    assert "model_not_found" not in await plain.page("/console/account")
    manager = await customer()
    page = await manager.page("/console/account")
    assert "model_not_found" in page
    # What never reached an engine has a page, too: from the list, and from the search.
    [there] = set(re.findall(r'href="(/console/requests/[^"]+)"', page))
    assert "List the available models" in await manager.page(there)
    found = await manager.get("/console/search", params={"q": there.rpartition("/")[2]})
    assert found.headers["location"] == there
    await (await customer(Role.TENANT_ADMIN, "bolt")).page(there, 404)
    async with Browser(base_url=gateway.url, timeout=90) as staff:
        await staff.sign_in()
        page = await staff.page("/console/tenants/acme")
        assert f'href="{there}"' in page
        # Whoever has nothing but the id finds it, too, and whose it was.
        found = await staff.get("/console/search", params={"q": there.rpartition("/")[2]})
        assert found.headers["location"] == there
        shown = await staff.page(there)
        assert "List the available models" in shown
        assert 'href="/console/tenants/acme"' in shown
        assert "it was refused before it reached an engine" in shown
    assert "GET /v1/models" in page


async def test_an_unknown_request_says_where_else_to_look(gateway, operator, customer):
    await gateway.add_tenant("acme")
    odd = "req-%27;%20rm%20-rf%20~"
    shown = await operator.page(f"/console/requests/{odd}", 404)
    assert "--grep &#39;req-&#39;&#34;&#39;&#34;&#39;; rm -rf ~&#39;" in shown  # quoted for the shell
    theirs = await (await customer()).page(f"/console/requests/{odd}", 404)
    assert "journalctl" not in theirs
    assert "/console/account" in theirs
    assert "No adapter, engine, tenant" in await operator.page("/console/search?q=req-0123456789abcdef")


async def test_health_audit_and_settings_tell_and_export(gateway, operator):
    await gateway.add_tenant("acme")
    async with gateway.http() as http:
        await http.patch("/admin/v1/tenants/acme", json={"requires": {"region": "eu"}})
        await http.patch("/admin/v1/tenants/acme", json={"limits": {"concurrent": 4}})
    await gateway.add_engine("a1", "http://127.0.0.1:1/a1")
    page = await operator.page("/console/health")
    assert 'href="/console/tenants/acme"' in page
    assert "Tenant requirements" in page
    assert "Tenant requirements" in await operator.first_event("/console/live/health")

    page = await operator.page("/console/audit?subject=acme&action=tenant.*")
    assert 'href="/console/tenants/acme"' in page
    assert "limits.concurrent: none → 4" in page
    assert "florin audit list --subject acme --action &#39;tenant.*&#39;" in page
    assert "Nothing matches" in await operator.page("/console/audit?actor=nobody")
    exported = await operator.page("/console/audit?subject=acme&format=csv")
    assert [row["action"] for row in csv.DictReader(io.StringIO(exported))] == ["tenant.update"] * 2
    await operator.page("/console/audit?since=rubbish", 400)
    await operator.page("/console/audit?cursor=rubbish", 400)

    page = await operator.page("/console/settings")
    assert "FLORIN_STATE_DIR" in page
    assert OPERATOR_KEY not in await operator.page("/console/settings?show=all")
    assert "FLORIN_PORT" in await operator.page("/console/settings?show=all&format=csv")


async def test_a_sign_in_link_works_once_and_its_creation_is_known(gateway):
    async with gateway.http() as http:
        made = (await http.post("/admin/v1/sign-in-links")).json()
        entries = (await http.get("/admin/v1/audit", params={"action": "key.sign_in_link"})).json()["data"]
    assert [(entry["actor"], entry["subject"]) for entry in entries] == [("bootstrap", "bootstrap")]
    path, _, secret = made["url"].partition("#link=")
    assert secret not in str(entries)
    async with Browser(base_url=gateway.url, timeout=90) as browser:
        assert (await browser.post(path, data={"link": secret + "x"})).status_code == 401
        assert (await browser.post(path, data={"link": secret})).status_code == 303
        assert "<h1>Tenants</h1>" in await browser.page("/console/tenants")
        assert (await browser.post(path, data={"link": secret})).status_code == 401

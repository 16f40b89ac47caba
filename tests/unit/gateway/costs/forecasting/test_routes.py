"""Forecast, budgets, anomalies, alerts and events over the API; who asks is given, not looked up."""

from types import SimpleNamespace

import pytest

from gateway.costs.periods import month_of
from gateway.tenants.directory import Role, Tenant
from gateway.units import DAY, HOUR
from tests.support.ledger_rows import price
from tests.unit.gateway.costs.rolled import row, write
from tests.unit.gateway.metering.make import record

OCTOBER = month_of("2026-10")
NOW = OCTOBER.start + 10 * DAY + 6 * HOUR


@pytest.fixture
def now():
    return lambda: NOW


@pytest.fixture
async def filled(installed):
    installed.directory = SimpleNamespace(tenants={"acme": Tenant("acme", base_access=True, created=0)})
    installed.settings = SimpleNamespace(redis_prefix="florin")
    ledger = installed.ledger
    price(ledger)
    first = OCTOBER.start // HOUR
    write(ledger, *(row(first + 24 * n, tenant=t) for n in range(10) for t in ("acme", "bolt")))
    return installed


async def test_a_forecast_and_a_tenant_s_own(client_for, filled):
    async with client_for() as client:
        whole = (await client.get("/finance/v1/forecast")).json()
        future = await client.get("/finance/v1/forecast", params={"month": "2027-01"})
    assert (whole["month"], whole["installation"]["expected"], whole["complete"]) == (
        "2026-10",
        "124.00",
        True,
    )
    assert [r["tenant"] for r in whole["rows"]] == ["acme", "bolt"]
    assert (future.status_code, future.json()["error"]["param"]) == (400, "month")
    async with client_for(Role.TENANT, "acme") as client:
        own = (await client.get("/finance/v1/forecast")).json()
        other = (await client.get("/finance/v1/forecast", params={"tenant": "bolt"})).json()
    assert "installation" not in own
    assert [r["tenant"] for r in own["rows"]] == ["acme"]
    assert other["rows"] == []


async def test_budgets_are_set_once_and_seen_by_their_tenant(client_for, filled):
    body = {"tenant": "acme", "amount": "15.50"}
    async with client_for() as client:
        first = await client.put("/finance/v1/budgets", json=body)
        again = await client.put("/finance/v1/budgets", json=body)
        await client.put("/finance/v1/budgets", json={"amount": "100"})
        listed = (await client.get("/finance/v1/budgets")).json()["data"]
        typo = await client.put("/finance/v1/budgets", json={**body, "tenant": "acmee"})
    assert (first.status_code, first.json()["changed"], again.json()["changed"]) == (200, True, False)
    assert [(b["tenant"], b["amount"], b["status"]) for b in listed] == [
        (None, "100.00", "forecast_over"), ("acme", "15.50", "reached"),
    ]  # fmt: skip
    assert (typo.status_code, typo.json()["error"]["param"]) == (400, "tenant")
    async with client_for(Role.TENANT, "acme") as client:
        assert [b["tenant"] for b in (await client.get("/finance/v1/budgets")).json()["data"]] == ["acme"]
        assert (await client.put("/finance/v1/budgets", json=body)).status_code == 403


@pytest.mark.parametrize(
    ("change", "param"),
    [({"amount": "much"}, "amount"), ({"from": "soon"}, "from"), ({"warn_percent": 0}, "warn_percent")],
)
async def test_a_wrong_budget_is_refused_with_the_field(client_for, filled, change, param):
    async with client_for() as client:
        answer = await client.put("/finance/v1/budgets", json={"tenant": "acme", "amount": "1", **change})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_anomalies_are_for_staff(client_for, filled):
    write(filled.ledger, row(OCTOBER.start // HOUR + 9 * 24 + 1, nano_gpu_hours=5 * 10**9))
    async with client_for() as client:
        found = (await client.get("/finance/v1/anomalies")).json()["data"]
        bad = [
            await client.get("/finance/v1/anomalies", params=params)
            for params in ({"factor": "1"}, {"factor": "x"}, {"idle_percent": "101"})
        ]
        alerts = await client.get("/finance/v1/alerts")
    assert [(a["kind"], a["subject"], a["ratio"]) for a in found] == [
        ("adapter", "acme/support", "3.50"), ("tenant", "acme", "6.00"),
    ]  # fmt: skip
    assert [answer.status_code for answer in bad] == [400] * 3
    assert alerts.json() == {"data": []}
    async with client_for(Role.TENANT, "acme") as client:
        assert (await client.get("/finance/v1/anomalies")).status_code == 403
        assert (await client.get("/finance/v1/alerts")).json() == {"data": []}


async def test_events_by_pages_and_their_cursor(client_for, filled):
    filled.ledger.insert([record(f"r{n}", dispatched=NOW, ended=NOW + n) for n in range(3)])
    async with client_for() as client:
        first = (await client.get("/finance/v1/events", params={"limit": 2})).json()
        rest = (await client.get("/finance/v1/events", params={"after": first["next"]})).json()
        end = (await client.get("/finance/v1/events", params={"after": rest["next"]})).json()
        bad = [
            await client.get("/finance/v1/events", params=params)
            for params in ({"after": "x"}, {"kind": "cost"}, {"kind": "cost", "month": "2026-10"})
        ]
    assert (len(first["data"]), first["more"], len(rest["data"]), rest["more"]) == (2, True, 1, False)
    assert end == {"data": [], "next": rest["next"], "more": False}
    assert {e["source"] for e in first["data"]} == {"florin/florin"}
    assert [answer.status_code for answer in bad] == [400] * 3
    async with client_for(Role.TENANT, "acme") as client:
        assert (await client.get("/finance/v1/events")).status_code == 403

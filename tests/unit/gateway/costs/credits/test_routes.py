"""Prepaid credits over HTTP, and in a customer's file."""

from __future__ import annotations

import csv
import io
from decimal import Decimal
from types import SimpleNamespace

import pytest

from gateway.costs.export.spool import Spool
from gateway.tenants.directory import Role
from tests.unit.gateway.costs.selling.sold import NOW, fill

CREDITS = "/finance/v1/credits"
PAID = {"tenant": "acme", "amount": "0.02", "reason": "Payment 4711", "reference": "pay_4711"}


@pytest.fixture
def contents():
    return fill


@pytest.fixture
def now():
    return lambda: NOW


@pytest.fixture
def sold(installed, tmp_path):
    folder = tmp_path / "exports"
    folder.mkdir()
    installed.settings = SimpleNamespace(issuer="Nordlicht", redis_prefix="florin", two_person_approval=False)
    installed.spool = Spool(folder, 10**9)
    return installed


async def test_credits_over_http(client_for, sold):
    async with client_for() as client:
        first, again = [await client.post(CREDITS, json=PAID) for _ in range(2)]
        other = await client.post(CREDITS, json=PAID | {"amount": "3"})
        wrong = [
            await client.post(CREDITS, json=PAID | {"reference": "x"} | change)
            for change in ({"amount": "0"}, {"begins": "soon"}, {"ends": "2020-01"}, {"tenant": "nobody"})
        ]
        listed = (await client.get(CREDITS, params={"tenant": "acme"})).json()["data"]
        balance = (await client.get(f"{CREDITS}/balance/acme")).json()
        ended = await client.post(f"{CREDITS}/1/end", json={"ends": "2027-01"})
        unknown = await client.post(f"{CREDITS}/9/end", json={})
    assert (first.status_code, again.status_code, again.json()) == (201, 200, first.json())
    assert (other.status_code, other.json()["error"]["code"]) == (409, "conflict")
    assert [answer.json()["error"]["param"] for answer in wrong] == ["amount", "begins", "ends", "tenant"]
    assert [(row["amount"], row["begins"], row["drawn"]) for row in listed] == [("0.02", "2026-12", "0.00")]
    assert (balance["month"], balance["granted"], balance["closing"]) == ("2026-12", "0.02", "0.02")
    assert (ended.json()["ends"], unknown.status_code) == ("2027-01", 404)


async def test_a_tenant_sees_its_own_balance_only(client_for, sold):
    async with client_for(Role.TENANT, "acme") as client:
        own, other = [await client.get(f"{CREDITS}/balance/{name}") for name in ("acme", "bolt")]
        grants = await client.get(CREDITS)
    assert (own.status_code, other.status_code, grants.status_code) == (200, 404, 403)


@pytest.mark.parametrize("tenant", ["acme", "bolt"])
async def test_a_customer_s_export_sums_to_its_statement_with_them(client_for, sold, tenant):
    async with client_for() as client:
        await client.post(CREDITS, json=PAID | {"tenant": tenant, "begins": "2026-10"})
        asked = {"month": "2026-10", "format": "json"}
        statement = (await client.get(f"/finance/v1/statements/{tenant}", params=asked)).json()
    async with client_for(Role.TENANT, tenant) as client:
        file = await client.get("/finance/v1/export", params={"month": "2026-10", "format": "focus-1.2"})
    rows = list(csv.DictReader(io.StringIO(file.text)))
    [credit] = [row for row in rows if row["x_Bucket"] == "prepaid"]
    assert (credit["ChargeCategory"], Decimal(credit["BilledCost"])) == ("Credit", Decimal("-0.02"))
    assert statement["credits"]["drawn_cents"] == 2
    cents = sum(Decimal(row["BilledCost"]) for row in rows) * 100
    assert abs(cents - statement["amount_cents"]) < 1

"""What a tenant's key finds on the finance routes: its prices and usage, and nothing of what GPUs cost."""

from __future__ import annotations

import csv
import functools
import io
import re
from decimal import Decimal
from types import SimpleNamespace

import pytest
from sqlalchemy import select

from gateway.costs.export.spool import Spool
from gateway.metering.ledger.schema import rollups
from gateway.tenants.directory import Role, Tenant
from tests.support.finance_routes import whole_app
from tests.unit.gateway.costs.rolled import row as line
from tests.unit.gateway.costs.rolled import write
from tests.unit.gateway.costs.selling.sold import ENGINE, NOW, RATE, fill_to_the_end

MONTHS = ("2026-10", "2026-11")
RANGE = {"from": "2026-10-01", "to": "2026-10-20"}
FORBIDDEN = re.compile(
    r"gpu[ _-]?hours|gpuhours|gpu_seconds|nano_gpu|rate_per_gpu_hour|gpu_count|utilization|calibrations"
    rf"|{re.escape(RATE)}|zebra|\"engine\"|_ps\"",
    re.IGNORECASE,
)


@pytest.fixture
def contents():
    return fill_to_the_end


@pytest.fixture
def now():
    return lambda: NOW


@pytest.fixture
def sold(installed, tmp_path):
    folder = tmp_path / "exports"
    folder.mkdir()
    tenants = {name: Tenant(name, base_access=True, created=0) for name in ("acme", "bolt", "corgi")}
    installed.directory = SimpleNamespace(tenants=tenants)
    installed.settings = SimpleNamespace(issuer="Nordlicht", redis_prefix="florin")
    installed.spool = Spool(folder, 10**9)
    return installed


@functools.cache
def reading_routes():
    """Paths, with the names of their parameters."""
    return [
        (route, {parameter["name"] for parameter in operations["get"].get("parameters", ())})
        for route, operations in whole_app().openapi()["paths"].items()
        if route.startswith("/finance/") and "get" in operations
    ]


def asked(tenant):
    """Every way to ask every finance route that reads for a time."""
    for route, names in reading_routes():
        path = route.replace("{tenant}", tenant)
        if "{month}" in path:
            yield from ((path.replace("{month}", month), {}) for month in MONTHS)
            continue
        yield path, {}
        if "month" in names:
            yield from ((path, {"month": month}) for month in MONTHS)
        if "from" in names:
            yield path, RANGE
    for month in MONTHS:
        for kind in ("csv", "focus-1.2", "focus-1.4"):
            yield "/finance/v1/export", {"month": month, "format": kind}
        yield f"/finance/v1/statements/{tenant}", {"month": month, "format": "json"}
        for by in ("tenant,adapter,gpu_type,region,purchase", "hour", "day,version"):
            for form in ("json", "csv"):
                yield "/finance/v1/costs", {"month": month, "by": by, "format": form}


def hours(ledger, tenant):
    """Amounts of GPU time of the tenant, as a reader could find them."""
    with ledger.read() as connection:
        query = select(rollups.c.nano_gpu_hours).where(rollups.c.tenant == tenant)
        return {str(nano) for nano in connection.execute(query).scalars() if abs(nano) > 10**6}


@pytest.mark.parametrize("tenant", ["acme", "bolt", "corgi"])
async def test_no_finance_route_tells_a_customer_what_gpus_cost(client_for, sold, tenant):
    seen = set()
    hidden = hours(sold.ledger, tenant)
    async with client_for(Role.TENANT, tenant) as client:
        for path, params in asked(tenant):
            answer = await client.get(path, params=params)
            if answer.status_code == 200:
                seen.add(path)
            text = answer.text
            if text.startswith("<!DOCTYPE html>"):
                text = text.partition("<body>")[2]
            found = FORBIDDEN.search(text)
            assert found is None, (path, params, text[max(0, found.start() - 80) : found.end() + 80])
            assert not [nano for nano in hidden if nano in text], (path, params)
    expected = {"costs", "usage", "export", "periods", "rate-cards", "invoices"}
    assert expected <= {path.rpartition("/")[2] for path in seen}
    assert f"/finance/v1/statements/{tenant}" in seen
    staff = ("margin", "bills", "compare", "reconciliation", "set-aside", "verify")
    assert not [path for path in seen if path.endswith(staff)]


async def test_the_same_routes_tell_staff(client_for, sold):
    """Else it would be easy to hide it."""
    whole = ""
    async with client_for() as client:
        for path, params in asked("acme"):
            whole += (await client.get(path, params=params)).text
            if ENGINE in whole and FORBIDDEN.search(whole.replace(ENGINE, "")):
                return
    raise AssertionError(whole)


async def test_a_customer_s_report_has_the_prices_of_its_card(client_for, sold):
    async with client_for(Role.TENANT, "acme") as client:
        report = (
            await client.get("/finance/v1/costs", params={"month": MONTHS[0], "by": "day,adapter"})
        ).json()
        later = (await client.get("/finance/v1/costs", params={"month": MONTHS[1]})).json()
        refused = await client.get("/finance/v1/costs", params={"by": "engine"})
    tokens = 9 * Decimal(10000), 9 * Decimal(2345), 9 * Decimal(678)
    expected = (tokens[0] * Decimal("0.6") + tokens[1] * Decimal("0.06") + tokens[2] * Decimal("2.4")) / 10**6
    assert report["priced_by"] == "rate_card"
    assert sum(Decimal(row["cost"]) for row in report["rows"]) == expected
    assert Decimal(report["totals"]["cost"]) == expected
    late = Decimal(4) * Decimal("0.6") + Decimal("0.06") + Decimal("0.7") * Decimal("2.4")
    assert Decimal(later["corrections"]["totals"]["cost"]) == late
    assert refused.status_code == 400
    assert "engine" not in refused.json()["error"]["message"].partition("is not one of")[2]
    async with client_for(Role.TENANT, "bolt") as client:
        cost = (await client.get("/finance/v1/costs", params={"month": MONTHS[0]})).json()
    async with client_for() as client:
        same = (await client.get("/finance/v1/costs", params={"month": MONTHS[0], "tenant": "bolt"})).json()
    assert cost["priced_by"] == "cost"
    assert [row["cost"] for row in cost["rows"]] == [row["cost"] for row in same["rows"]]


@pytest.mark.parametrize("tenant", ["acme", "corgi"])
@pytest.mark.parametrize("month", MONTHS)
async def test_a_customer_s_export_sums_to_its_statement_with_stable_skus(client_for, sold, tenant, month):
    async with client_for(Role.TENANT, tenant) as client:
        answer = await client.get("/finance/v1/export", params={"month": month})
        statement = await client.get(
            f"/finance/v1/statements/{tenant}", params={"month": month, "format": "json"}
        )
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    exact = Decimal(statement.json()["charges"]["exact"])
    assert sum(Decimal(row["BilledCost"]) for row in rows) == exact
    prices = {(row["SkuPriceId"], row["ListUnitPrice"]) for row in rows if row["SkuId"].startswith("tokens/")}
    assert len(prices) == len({name for name, _ in prices})
    for row in rows:
        if row["ChargeCategory"] != "Usage":
            assert not row["ListUnitPrice"], "a credit or an adjustment has no price"
            continue
        cost = Decimal(row["PricingQuantity"]) * Decimal(row["ListUnitPrice"])
        assert cost == Decimal(row["BilledCost"])


async def test_a_customer_s_export_has_the_number_of_its_invoice(client_for, sold):
    """And of its line: a SKU, or what is corrected of a month."""
    params = {"month": MONTHS[0], "format": "focus-1.4"}
    invoice = {"month": MONTHS[0], "tenant": "acme", "number": "2026-0117"}
    files = []
    for numbered in (
        None,
        invoice,
        {**invoice, "number": "R-2", "corrects": "2026-0117", "reason": "Wrong tax"},
    ):
        async with client_for(Role.OPERATOR) as client:
            if numbered is not None:
                answer = await client.post("/finance/v1/invoices", json=numbered)
                assert answer.status_code == 201, answer.text
        async with client_for(Role.TENANT, "acme") as client:
            files.append(
                list(
                    csv.DictReader(io.StringIO((await client.get("/finance/v1/export", params=params)).text))
                )
            )
    for rows, number in zip(files, ("", "2026-0117", "R-2"), strict=True):
        assert rows
        assert {row["InvoiceId"] for row in rows} == {number}
        assert {row["InvoiceDetailId"] for row in rows} == {
            f"{number}/{row['SkuId']}" if number else "" for row in rows
        }
    async with client_for(Role.TENANT, "bolt") as client:
        others = await client.get("/finance/v1/export", params=params)
    assert "R-2" not in others.text


async def test_rate_cards_over_http(client_for, sold):
    body = {"name": "gold", "input_per_million": "1", "output_per_million": "2", "valid_from": "2026-12"}
    async with client_for() as client:
        first, again = [await client.post("/finance/v1/rate-cards", json=body) for _ in range(2)]
        other = await client.post("/finance/v1/rate-cards", json={**body, "output_per_million": "3"})
        wrong = await client.post("/finance/v1/rate-cards", json={**body, "input_per_million": "1e-9"})
        closed = await client.post("/finance/v1/rate-cards", json={**body, "valid_from": "2026-10"})
        given = {"tenant": "bolt", "card": "gold", "valid_from": "2026-12"}
        assigned = [await client.post("/finance/v1/rate-cards/assignments", json=given) for _ in range(2)]
        nobody = await client.post("/finance/v1/rate-cards/assignments", json={**given, "tenant": "acmee"})
        shown = (await client.get("/finance/v1/rate-cards")).json()
    assert (first.status_code, again.status_code, other.status_code) == (201, 200, 409)
    assert first.json()["cached_per_million"] == "1.00"
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "input_per_million")
    assert "closed" in closed.json()["error"]["message"]
    assert [answer.status_code for answer in assigned] == [201, 200]
    assert (nobody.status_code, nobody.json()["error"]["code"]) == (404, "not_found")
    assert [card["name"] for card in shown["data"]] == ["standard", "small", "gold"]
    async with client_for(Role.TENANT, "bolt") as client:
        own = (await client.get("/finance/v1/rate-cards")).json()
        others = (await client.get("/finance/v1/rate-cards", params={"tenant": "acme"})).json()
        refused = await client.post("/finance/v1/rate-cards", json=body)
    assert [card["name"] for card in own["data"]] == ["gold"]
    assert others == {"data": [], "assignments": []}
    assert refused.status_code == 403


async def test_an_invoice_needs_a_final_statement_and_a_number_of_its_own(client_for, sold):
    body = {"tenant": "acme", "month": "2026-10", "number": "17", "tax_percent": "19", "due": "2026-11-30"}
    async with client_for() as client:
        open_month = await client.post("/finance/v1/invoices", json={**body, "month": "2026-11"})
        unknown = await client.post("/finance/v1/invoices", json={**body, "tenant": "nobody"})
        bad = await client.post("/finance/v1/invoices", json={**body, "due": "soon"})
        made = await client.post("/finance/v1/invoices", json=body)
        again = await client.post("/finance/v1/invoices", json=body)
        taken = await client.post("/finance/v1/invoices", json={**body, "tenant": "bolt"})
        other = await client.post("/finance/v1/invoices", json={**body, "number": "18"})
        correction = {**body, "number": "18", "corrects": "17", "tax_percent": "20"}
        silent = await client.post("/finance/v1/invoices", json=correction)
        corrected = await client.post("/finance/v1/invoices", json={**correction, "reason": "Typing error"})
        credit = {**body, "number": "C-1", "corrects": "18", "reason": "Outage", "credit": "0.01"}
        credited = await client.post("/finance/v1/invoices", json=credit)
        stray = await client.post("/finance/v1/invoices", json={**credit, "corrects": "", "reason": ""})
        listed = (await client.get("/finance/v1/invoices", params={"month": "2026-10"})).json()["data"]
    answers = (
        *(open_month, unknown, bad, made, again, taken),
        *(other, silent, corrected, credited, stray),
    )
    assert [answer.status_code for answer in answers] == [
        409, 409, 400, 201, 200, 409,
        409, 400, 201, 201, 400,
    ]  # fmt: skip  # one answer after the other
    assert "--corrects 17 --reason" in other.json()["error"]["message"]
    assert "florin cost close 2026-11" in open_month.json()["error"]["message"]
    assert [invoice["number"] for invoice in listed] == ["17", "18", "C-1"]
    assert [invoice["tax_percent"] for invoice in listed] == ["19", "20", "20"]


async def test_a_customer_reads_its_statement_as_it_was_issued(client_for, sold):
    body = {"tenant": "acme", "month": "2026-10", "number": "17"}
    async with client_for() as client:
        await client.post("/finance/v1/invoices", json=body)
        correction = {
            **body,
            "number": "18",
            "corrects": "17",
            "reason": "VAT was missing",
            "tax_percent": "19",
        }
        await client.post("/finance/v1/invoices", json=correction)
    async with client_for(Role.TENANT, "acme") as client:
        path, asked = "/finance/v1/statements/acme", {"month": "2026-10", "format": "json"}
        now, then = [(await client.get(path, params=asked | more)).json() for more in ({}, {"number": "17"})]
        unknown = await client.get(path, params={**asked, "number": "16"})
    assert [statement["invoice"]["number"] for statement in (now, then)] == ["18", "17"]
    assert [bool(statement["tax_cents"]) for statement in (now, then)] == [True, False]
    assert (unknown.status_code, unknown.json()["error"]["param"]) == (404, "number")


async def test_a_customer_is_not_told_to_add_a_price(client_for, sold):
    write(sold.ledger, {**line(), "posted": MONTHS[1], "tenant": "bolt", "gpu_type": "B200"})
    params = {"month": MONTHS[1]}
    for path in ("/finance/v1/statements/bolt", "/finance/v1/export"):
        async with client_for(Role.TENANT, "bolt") as client:
            own = (await client.get(path, params=params)).json()["error"]
        async with client_for() as client:
            staff = (await client.get(path, params=params)).json()["error"]
        assert own["code"] == staff["code"] == "missing_price"
        assert "florin price add" in staff["message"]
        assert own["message"] == "Your provider has not entered all prices for this month yet."


async def test_the_margin_is_for_staff(client_for, sold):
    async with client_for() as client:
        made = (await client.get("/finance/v1/margin", params={"month": "2026-10"})).json()
        wrong = await client.get("/finance/v1/margin", params={"month": "x"})
    async with client_for(Role.TENANT, "acme") as client:
        refused = await client.get("/finance/v1/margin", params={"month": "2026-10"})
    assert [row["tenant"] for row in made["rows"]] == ["acme", "bolt", "corgi"]
    assert made["rows"][2]["margin_percent"] == "100.00"
    assert (wrong.status_code, refused.status_code) == (400, 403)

"""What a tenant's key finds on the finance routes: its prices and usage, and nothing of what GPUs cost."""

from __future__ import annotations

import csv
import functools
import io
import re
from decimal import Decimal

import pytest
from sqlalchemy import select

from gateway.metering.ledger.schema import rollups
from gateway.tenants.directory import Role
from tests.support.routes import described
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


@functools.cache
def reading_routes():
    """Paths, with the names of their parameters."""
    return [
        (route, {parameter["name"] for parameter in operations["get"].get("parameters", ())})
        for route, operations in described()["paths"].items()
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
async def test_no_finance_route_tells_a_customer_what_gpus_cost(client_for, installed, tenant):
    seen = set()
    hidden = hours(installed.ledger, tenant)
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


async def test_the_same_routes_tell_staff(client_for):
    """Else it would be easy to hide it."""
    whole = ""
    async with client_for() as client:
        for path, params in asked("acme"):
            whole += (await client.get(path, params=params)).text
            if ENGINE in whole and FORBIDDEN.search(whole.replace(ENGINE, "")):
                return
    raise AssertionError(whole)


async def test_a_customer_s_report_has_the_prices_of_its_card(ask):
    report = (await ask("costs", key="acme", month=MONTHS[0], by="day,adapter")).json()
    later = (await ask("costs", key="acme", month=MONTHS[1])).json()
    refused = await ask("costs", key="acme", by="engine")
    tokens = 9 * Decimal(10000), 9 * Decimal(2345), 9 * Decimal(678)
    expected = (tokens[0] * Decimal("0.6") + tokens[1] * Decimal("0.06") + tokens[2] * Decimal("2.4")) / 10**6
    assert report["priced_by"] == "rate_card"
    assert (
        sum(Decimal(row["cost"]) for row in report["rows"]) == Decimal(report["totals"]["cost"]) == expected
    )
    late = Decimal(4) * Decimal("0.6") + Decimal("0.06") + Decimal("0.7") * Decimal("2.4")
    assert Decimal(later["corrections"]["totals"]["cost"]) == late
    assert refused.status_code == 400
    assert "engine" not in refused.json()["error"]["message"].partition("is not one of")[2]
    cost, same = [
        (await ask("costs", month=MONTHS[0], **who)).json() for who in ({"key": "bolt"}, {"tenant": "bolt"})
    ]
    assert cost["priced_by"] == "cost"
    assert [row["cost"] for row in cost["rows"]] == [row["cost"] for row in same["rows"]]


@pytest.mark.parametrize("tenant", ["acme", "corgi"])
@pytest.mark.parametrize("month", MONTHS)
async def test_a_customer_s_export_sums_to_its_statement_with_stable_skus(ask, tenant, month):
    rows = table(await ask("export", key=tenant, month=month))
    statement = (await ask(f"statements/{tenant}", key=tenant, month=month, format="json")).json()
    assert sum(Decimal(row["BilledCost"]) for row in rows) == Decimal(statement["charges"]["exact"])
    prices = {(row["SkuPriceId"], row["ListUnitPrice"]) for row in rows if row["SkuId"].startswith("tokens/")}
    assert len(prices) == len({name for name, _ in prices})
    for row in rows:
        if row["ChargeCategory"] != "Usage":
            assert not row["ListUnitPrice"], "a credit or an adjustment has no price"
        else:
            assert Decimal(row["PricingQuantity"]) * Decimal(row["ListUnitPrice"]) == Decimal(
                row["BilledCost"]
            )


def table(answer):
    return list(csv.DictReader(io.StringIO(answer.text)))


INVOICE = {"month": MONTHS[0], "tenant": "acme", "number": "17", "tax_percent": "19", "due": "2026-11-30"}
CORRECTION = {**INVOICE, "number": "18", "corrects": "17", "tax_percent": "20", "reason": "Typing error"}


async def test_a_customer_s_export_has_the_number_of_its_invoice(ask):
    """And of its line: a SKU, or what is corrected of a month."""
    for invoice, number in ((None, ""), (INVOICE, "17"), (CORRECTION, "18")):
        if invoice:
            assert (await ask("invoices", invoice)).status_code == 201
        rows = table(await ask("export", key="acme", month=MONTHS[0], format="focus-1.4"))
        assert {row["InvoiceId"] for row in rows} == {number}
        details = {f"{number}/{row['SkuId']}" if number else "" for row in rows}
        assert {row["InvoiceDetailId"] for row in rows} == details
    assert "18/" not in (await ask("export", key="bolt", month=MONTHS[0], format="focus-1.4")).text


async def test_an_invoice_needs_a_final_statement_and_a_number_of_its_own(ask):
    credit = {**INVOICE, "number": "C-1", "corrects": "18", "reason": "Outage", "credit": "0.01"}
    answers = [
        (body, status, await ask("invoices", body))
        for body, status in (
            ({**INVOICE, "month": "2026-11"}, 409), ({**INVOICE, "tenant": "nobody"}, 409), ({**INVOICE, "due": "2026-02-30"}, 400),
            ({**INVOICE, "due": "20261130"}, 400),
            (INVOICE, 201), (INVOICE, 200), ({**INVOICE, "tenant": "bolt"}, 409), ({**INVOICE, "number": "18"}, 409),
            ({**CORRECTION, "reason": ""}, 400), (CORRECTION, 201), (credit, 201), ({**credit, "corrects": "", "reason": ""}, 400),
        )
    ]  # fmt: skip  # one answer after the other
    for body, status, answer in answers:
        assert answer.status_code == status, (body, answer.text)
    assert "florin cost close 2026-11" in answers[0][2].json()["error"]["message"]
    assert "--corrects 17 --reason" in answers[7][2].json()["error"]["message"]
    listed = (await ask("invoices", month="2026-10")).json()["data"]
    assert [(invoice["number"], invoice["tax_percent"]) for invoice in listed] == [
        ("17", "19"),
        ("18", "20"),
        ("C-1", "20"),
    ]
    now, then = [
        (await ask("statements/acme", key="acme", month="2026-10", format="json", **more)).json()
        for more in ({}, {"number": "17"})
    ]
    assert [statement["invoice"]["number"] for statement in (now, then)] == ["18", "17"]
    unknown = await ask("statements/acme", key="acme", month="2026-10", format="json", number="16")
    assert (unknown.status_code, unknown.json()["error"]["param"]) == (404, "number")


async def test_rate_cards_over_http(ask):
    card = {"name": "gold", "input_per_million": "1", "output_per_million": "2", "valid_from": "2026-12"}
    given = {"tenant": "bolt", "card": "gold", "valid_from": "2026-12"}
    for path, body, status in (
        ("rate-cards", card, 201), ("rate-cards", card, 200), ("rate-cards", card | {"output_per_million": "3"}, 409),
        ("rate-cards", card | {"input_per_million": "1e-9"}, 400), ("rate-cards", card | {"valid_from": "2026-10"}, 400),
        ("rate-cards", card | {"name": "Gold"}, 400), ("rate-cards", card | {"monthly_minimum": "-1"}, 400),
        ("rate-cards", card | {"discount_percent": 5, "discount_until": "soon"}, 400),
        ("rate-cards/assignments", given, 201), ("rate-cards/assignments", given, 200),
        ("rate-cards/assignments", given | {"tenant": "acmee"}, 404),
    ):  # fmt: skip  # one question after the other
        assert (await ask(path, body)).status_code == status, body
    shown, own = [(await ask("rate-cards", key=tenant)).json() for tenant in ("", "bolt")]
    assert [card["name"] for card in shown["data"]] == ["standard", "small", "gold"]
    assert [card["name"] for card in own["data"]] == ["gold"]
    assert (await ask("rate-cards", key="bolt", tenant="acme")).json() == {"data": [], "assignments": []}
    assert (await ask("rate-cards", card, key="bolt")).status_code == 403


async def test_a_customer_is_not_told_to_add_a_price(ask, installed):
    write(installed.ledger, {**line(), "posted": MONTHS[1], "tenant": "bolt", "gpu_type": "B200"})
    for path in ("statements/bolt", "export"):
        own, staff = [(await ask(path, key=who, month=MONTHS[1])).json()["error"] for who in ("bolt", "")]
        assert own["code"] == staff["code"] == "missing_price"
        assert "florin price add" in staff["message"]
        assert own["message"] == "Your provider has not entered all prices for this month yet."

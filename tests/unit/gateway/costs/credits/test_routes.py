"""Prepaid credits over HTTP, and in a customer's file."""

import csv
import io
from decimal import Decimal

import pytest

from tests.unit.gateway.costs.selling.sold import NOW, fill

PAID = {"tenant": "acme", "amount": "0.02", "reason": "Payment 4711", "reference": "pay_4711"}
OTHER = PAID | {"reference": "x"}


@pytest.fixture
def contents():
    return fill


@pytest.fixture
def now():
    return lambda: NOW


async def test_credits_over_http(ask):
    first, again = [await ask("credits", PAID) for _ in range(2)]
    assert (first.status_code, again.status_code, again.json()) == (201, 200, first.json())
    other = await ask("credits", PAID | {"amount": "3"})
    assert (other.status_code, other.json()["error"]["code"]) == (409, "conflict")
    for change in ({"amount": "0"}, {"begins": "soon"}, {"ends": "2020-01"}, {"tenant": "nobody"}):
        assert [(await ask("credits", OTHER | change)).json()["error"]["param"]] == list(change)
    [listed] = (await ask("credits", tenant="acme")).json()["data"]
    assert (listed["amount"], listed["begins"], listed["drawn"]) == ("0.02", "2026-12", "0.00")
    balance = (await ask("credits/balance/acme", key="acme")).json()
    assert (balance["month"], balance["granted"], balance["closing"]) == ("2026-12", "0.02", "0.02")
    assert (await ask("credits/1/end", {"ends": "2027-01"})).json()["ends"] == "2027-01"
    assert (await ask("credits/9/end", {})).status_code == 404
    assert [(await ask(path, key="acme")).status_code for path in ("credits/balance/bolt", "credits")] == [
        404,
        403,
    ]


@pytest.mark.parametrize("tenant", ["acme", "bolt"])
async def test_a_customer_s_export_sums_to_its_statement_with_them(ask, tenant):
    await ask("credits", PAID | {"tenant": tenant, "begins": "2026-10"})
    statement = (await ask(f"statements/{tenant}", month="2026-10", format="json")).json()
    file = await ask("export", key=tenant, month="2026-10", format="focus-1.2")
    rows = list(csv.DictReader(io.StringIO(file.text)))
    [credit] = [row for row in rows if row["x_Bucket"] == "prepaid"]
    assert (credit["ChargeCategory"], Decimal(credit["BilledCost"])) == ("Credit", Decimal("-0.02"))
    assert statement["credits"]["drawn_cents"] == 2
    assert abs(sum(Decimal(row["BilledCost"]) for row in rows) * 100 - statement["amount_cents"]) < 1

"""The console's pages about money, on the made-up month of `florin cost sample`."""

from __future__ import annotations

import contextlib
import csv
import io
import re
import shutil
from collections.abc import AsyncIterator
from decimal import Decimal

import httpx2
import pytest

from gateway.costs.sample_month.month import write
from gateway.tenants.directory import Role
from tests.support.harness import OPERATOR_KEY, Gateway, running_gateway

MONTH = "2026-10"


@pytest.fixture(scope="module")
def october(tmp_path_factory):
    directory_ = tmp_path_factory.mktemp("october") / "month"
    write(directory_)
    return directory_ / "ledger.db"


@pytest.fixture
async def gateway(tmp_path, october, valkey_url, prefix):
    (tmp_path / "state").mkdir()
    shutil.copy(october, tmp_path / "state" / "ledger.db")
    async with running_gateway(tmp_path / "state", valkey_url, prefix) as running:
        yield running


@contextlib.asynccontextmanager
async def signed_in(
    gateway: Gateway, role: Role = Role.OPERATOR, tenant: str = ""
) -> AsyncIterator[httpx2.AsyncClient]:
    text = OPERATOR_KEY if role is Role.OPERATOR else await gateway.add_key(role, tenant)
    async with httpx2.AsyncClient(base_url=gateway.url, timeout=None) as client:
        began = await client.post("/console/sign-in", data={"key": text})
        assert began.status_code == 303
        yield client


def token(page: httpx2.Response) -> str:
    return re.search(r'name="csrf" value="([^"]+)"', page.text)[1]


async def test_the_months_figures_and_a_closing_that_is_not_confirmed(gateway):
    """tests/browser/test_days.py goes on from there: closing, verification, statement and files."""
    async with signed_in(gateway, Role.FINANCE) as analyst:
        assert (await analyst.get("/console")).headers["location"] == "/console/money"
        page = await analyst.get(f"/console/money?month={MONTH}")
        assert page.status_code == 200
        for figure in ("2,958.15 USD", "1,432.14", "780.74", "How it adds up"):
            assert figure in page.text
        # The file has every digit, and adds up to the ledger's total.
        file = await analyst.get(f"/console/money?month={MONTH}&by=tenant,adapter,gpu_type&format=csv")
        rows = list(csv.DictReader(io.StringIO(file.text)))
        assert {row["tenant"] for row in rows} == {"acme", "bolt", "corgi"}
        assert sum(Decimal(row["cost"]) for row in rows) == Decimal("1432.1398238761")
        assert "54.9 %" in (await analyst.get(f"/console/money/utilization?month={MONTH}")).text
        assert "-1,526.01 USD" in (await analyst.get(f"/console/money/margin?month={MONTH}")).text

        month = await analyst.get(f"/console/money/months/{MONTH}")
        assert "Close the month" in month.text
        there = f"/console/money/months/{MONTH}"
        proof = {"csrf": token(month)}
        unsure = await analyst.post(f"{there}/close", data={**proof, "confirm": "october"})
        assert unsure.status_code == 400
        assert "type 2026-10" in unsure.text


async def test_an_auditor_reads_the_books_and_has_no_forms(gateway):
    pages = ("", "/months", f"/months/{MONTH}", "/utilization", "/margin", "/prices", "/prices/1", "/budgets")
    async with signed_in(gateway, Role.AUDITOR) as auditor:
        assert (await auditor.get("/console")).headers["location"] == "/console/money"
        for path in (*(f"/console/money{page}" for page in pages), "/console/audit", "/console/requests"):
            page = await auditor.get(path, params={"month": MONTH})
            assert page.status_code == 200, path
            assert set(re.findall(r'method="post" action="([^"]*)"', page.text)) == {"/console/sign-out"}, (
                path
            )
        price = {"csrf": token(page), "gpu_type": "B200", "rate": "1", "currency": "usd"}
        assert (await auditor.post("/console/money/prices", data=price)).status_code == 403


async def test_prices_and_budgets_are_set_in_forms(gateway):
    async with signed_in(gateway) as operator:
        for query in ("month=2026-13", "month=<script>", "by=engine,password"):
            wrong = await operator.get(f"/console/money?{query}")
            assert wrong.status_code == 400
            assert "<script>" not in wrong.text.replace("<script src", "")
        page = await operator.get("/console/money/prices")
        price = {"csrf": token(page), "gpu_type": "B200", "rate_per_gpu_hour": "two", "currency": "usd"}
        refused = await operator.post("/console/money/prices", data=price, headers={"hx-request": "true"})
        assert refused.status_code == 400
        assert "is not a decimal number" in refused.text
        assert "<html" not in refused.text  # a part, for beside the form
        added = await operator.post(
            "/console/money/prices", data=price | {"rate_per_gpu_hour": "6.25"}, follow_redirects=True
        )
        assert "B200 costs 6.25 USD per GPU-hour." in added.text
        number = max(int(found) for found in re.findall(r"/console/money/prices/(\d+)", added.text))
        wrong = {"csrf": price["csrf"], "rate": "6.50", "reason": "typed wrongly"}
        corrected = await operator.post(f"/console/money/prices/{number}", data=wrong, follow_redirects=True)
        assert "is corrected" in corrected.text
        assert "corrected</span>" in (await operator.get("/console/money/prices?history=1")).text
        budget = {"csrf": price["csrf"], "tenant": "", "amount": "5000", "first_month": MONTH}
        put = await operator.post("/console/money/budgets", data=budget, follow_redirects=True)
        assert "The budget of the whole installation is 5000." in put.text
        async with gateway.http() as api:
            (row,) = (await api.get("/finance/v1/budgets", params={"month": MONTH})).json()["data"]
            assert Decimal(row["amount"] if "amount" in row else row["budget"]) == 5000


async def test_a_customer_sees_its_own_costs_and_no_more(gateway):
    await gateway.add_tenant("acme", since=0)
    async with signed_in(gateway, Role.TENANT_ADMIN, "acme") as customer:
        page = await customer.get(f"/console/money?month={MONTH}")
        assert page.status_code == 200
        assert "acme/support" in page.text
        for secret in ("bolt", "corgi", "GPU-hours", "H100", "Margin", "2,958"):
            assert secret not in page.text
        month = await customer.get(f"/console/money/months/{MONTH}")
        assert "Close the month" not in month.text
        assert "bolt" not in month.text
        assert (await customer.get(f"/console/money/months/{MONTH}/statements/acme")).status_code == 200
        closing = {"csrf": token(month), "confirm": MONTH}
        refused = await customer.post(f"/console/money/months/{MONTH}/close", data=closing)
        assert refused.status_code == 403
        budget = {"csrf": token(month), "tenant": "bolt", "amount": "1"}
        assert (await customer.post("/console/money/budgets", data=budget)).status_code == 403

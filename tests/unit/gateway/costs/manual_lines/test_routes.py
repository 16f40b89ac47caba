"""Fees, charges, credits and refunds over HTTP, and who may approve them and a close."""

from __future__ import annotations

import csv
import io
from decimal import Decimal
from types import SimpleNamespace

import pytest

from gateway.api.dependencies import require_staff
from gateway.costs.export.spool import Spool
from gateway.tenants.directory import Key, Role
from tests.support.finance_routes import whole_app
from tests.unit.gateway.costs.selling.sold import NOW, fill_to_the_end

LINES = "/finance/v1/manual-lines"
CREDIT = {"kind": "credit", "tenant": "acme", "amount": "40.00", "reason": "Outage of 3 November"}
FEE = {"kind": "fee", "tenant": "acme", "amount": "31", "reason": "Support", "begins": "2026-11-01"}


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
    installed.settings = SimpleNamespace(issuer="Nordlicht", redis_prefix="florin", two_person_approval=False)
    installed.spool = Spool(folder, 10**9)
    return installed


@pytest.fixture
def staff(client_for, sold):
    """A client of a member of staff with a key of their own; two people approve."""
    sold.settings.two_person_approval = True
    app = whole_app()
    asks = app.dependency_overrides[require_staff]

    def client(key):
        app.dependency_overrides[require_staff] = lambda: Key(key, "", Role.FINANCE, "digest", 0)
        return client_for()

    yield client
    app.dependency_overrides[require_staff] = asks


async def test_lines_over_http(client_for, sold):
    async with client_for() as client:
        first, again = [await client.post(LINES, json=CREDIT) for _ in range(2)]
        fee = await client.post(LINES, json={**FEE, "adapter": "acme/chat", "ends": "2027-10-31"})
        ended = await client.post(f"{LINES}/2/end", json={"ends": "2026-12-31", "reason": "Contract ended"})
        unknown = await client.post(f"{LINES}/9/end", json={"ends": "2026-12-31", "reason": "Contract ended"})
        stays = await client.post(f"{LINES}/1/withdraw")
        listed = (await client.get(LINES, params={"tenant": "acme"})).json()["data"]
        statement = await client.get(
            "/finance/v1/statements/acme", params={"month": "2026-11", "format": "json"}
        )
    assert [answer.status_code for answer in (first, again, fee, ended, unknown, stays)] == [
        201, 200, 201, 201, 404, 409,
    ]  # fmt: skip  # one answer after the other
    assert (first.json()["state"], first.json()["month"]) == ("approved", "2026-11")
    assert [(line["kind"], line["fee"], line["ends"]) for line in listed] == [
        ("credit", None, None), ("fee", None, "2027-10-31"), ("end", 2, "2026-12-31"),
    ]  # fmt: skip  # a line each
    assert [line["amount_cents"] for line in statement.json()["manual_lines"]] == [-4000, 3100]
    async with client_for(Role.TENANT, "acme") as client:
        assert (await client.get(LINES)).status_code == 403
        assert (await client.post(LINES, json=CREDIT)).status_code == 403


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"amount": "0"}, "amount"),
        ({"amount": "1.001"}, "amount"),
        ({"tenant": "nobody"}, "tenant"),
        ({"begins": "2026-11-01"}, "begins"),
        ({"adapter": "acme/chat"}, "adapter"),
        ({**FEE, "adapter": "bolt/chat"}, "adapter"),
        ({**FEE, "begins": "soon"}, "begins"),
        ({**FEE, "begins": "2026-10-31"}, "begins"),
        ({**FEE, "ends": "2026-10-31"}, "ends"),
    ],
)
async def test_a_wrong_line_is_refused(client_for, sold, changes, param):
    async with client_for() as client:
        answer = await client.post(LINES, json=CREDIT | changes)
    assert (answer.status_code, answer.json()["error"]["param"]) == (404 if param == "tenant" else 400, param)


async def test_a_customer_s_export_sums_to_its_statement_with_them(client_for, sold):
    async with client_for() as client:
        for body in (CREDIT, FEE, {**CREDIT, "tenant": "bolt"}):
            await client.post(LINES, json=body)
    for tenant in ("acme", "bolt"):
        async with client_for(Role.TENANT, tenant) as client:
            answer = await client.get("/finance/v1/export", params={"month": "2026-11"})
            statement = (
                await client.get(
                    f"/finance/v1/statements/{tenant}", params={"month": "2026-11", "format": "json"}
                )
            ).json()
        total = sum(Decimal(row["BilledCost"]) for row in csv.DictReader(io.StringIO(answer.text)))
        assert round(total * 100) == statement["amount_cents"]
        assert statement["manual_lines"][0]["reason"] == CREDIT["reason"]


async def test_another_person_approves_a_line(staff):
    async with staff("k1") as client:
        pending = await client.post(LINES, json=CREDIT)
        own = await client.post(f"{LINES}/1/approve")
    async with staff("k2") as client:
        approved = await client.post(f"{LINES}/1/approve")
    assert (pending.json()["state"], approved.json()["state"]) == ("pending", "approved")
    assert (own.status_code, own.json()["error"]["code"]) == (403, "second_person_required")
    assert (approved.json()["requested_by"], approved.json()["approved_by"]) == ("key:k1", "key:k2")


async def test_another_person_closes_a_month_on_the_same_terms(staff):
    path = "/finance/v1/periods/2026-11/close"
    async with staff("k1") as client:
        asked = [await client.post(path, json={}) for _ in range(2)]
    async with staff("k2") as client:
        other_terms = await client.post(path, json={"policy": "none"})
    async with staff("k1") as client:
        closed = await client.post(path, json={"policy": "none"})
        again = await client.post(path, json={"policy": "none"})
    assert [answer.status_code for answer in (*asked, other_terms, closed, again)] == [
        202,
        202,
        202,
        200,
        200,
    ]
    assert asked[1].json()["request"]["requested_by"] == "key:k1"
    assert other_terms.json()["request"]["requested_by"] == "key:k2", "it replaces the first"
    assert (closed.json()["state"], closed.json()["already"], again.json()["already"]) == (
        "closed",
        False,
        True,
    )


async def test_a_month_that_is_not_over_cannot_be_requested(staff):
    async with staff("k1") as client:
        early = await client.post("/finance/v1/periods/2026-12/close", json={})
    assert (early.status_code, early.json()["error"]["code"]) == (409, "cannot_close")

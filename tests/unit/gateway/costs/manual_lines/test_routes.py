"""Fees, charges, credits and refunds over HTTP, and who may approve them and a close."""

from __future__ import annotations

import csv
import io
from decimal import Decimal

import pytest

from gateway.api.dependencies import require_staff
from gateway.tenants.directory import Key, Role
from tests.support.finance_routes import whole_app
from tests.unit.gateway.costs.selling.sold import NOW, fill_to_the_end

LINES = "manual-lines"
CREDIT = {"kind": "credit", "tenant": "acme", "amount": "40.00", "reason": "Outage of 3 November"}
FEE = {"kind": "fee", "tenant": "acme", "amount": "31", "reason": "Support", "begins": "2026-11-01"}


@pytest.fixture
def contents():
    return fill_to_the_end


@pytest.fixture
def now():
    return lambda: NOW


@pytest.fixture
def staff(ask, installed):
    """A function that asks as a member of staff with a key of their own; two people approve."""
    installed.settings.two_person_approval = True
    app = whole_app()
    finance = app.dependency_overrides[require_staff]

    async def question(key, path, body):
        app.dependency_overrides[require_staff] = lambda: Key(key, "", Role.FINANCE, "digest", 0)
        return await ask(path, body)

    yield question
    app.dependency_overrides[require_staff] = finance


async def test_lines_over_http(ask):
    fee = {**FEE, "adapter": "acme/chat", "ends": "2027-10-31"}
    end = {"ends": "2026-12-31", "reason": "Contract ended"}
    answers = [
        await ask(path, body)
        for path, body in (
            (LINES, CREDIT), (LINES, CREDIT), (LINES, fee), (f"{LINES}/2/end", end), (f"{LINES}/9/end", end),
            (f"{LINES}/1/withdraw", {}),
        )
    ]  # fmt: skip  # one question after the other
    assert [answer.status_code for answer in answers] == [201, 200, 201, 201, 404, 409]
    assert (answers[0].json()["state"], answers[0].json()["month"]) == ("approved", "2026-11")
    listed = (await ask(LINES, tenant="acme")).json()["data"]
    assert [(line["kind"], line["fee"], line["ends"]) for line in listed] == [
        ("credit", None, None), ("fee", None, "2027-10-31"), ("end", 2, "2026-12-31"),
    ]  # fmt: skip  # a line each
    statement = (await ask("statements/acme", month="2026-11", format="json")).json()
    assert [line["amount_cents"] for line in statement["manual_lines"]] == [-4000, 3100]
    assert [(await ask(LINES, body, key="acme")).status_code for body in (None, CREDIT)] == [403, 403]


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
async def test_a_wrong_line_is_refused(ask, changes, param):
    answer = await ask(LINES, CREDIT | changes)
    assert (answer.status_code, answer.json()["error"]["param"]) == (404 if param == "tenant" else 400, param)


async def test_a_customer_s_export_sums_to_its_statement_with_them(ask):
    for body in (CREDIT, FEE, {**CREDIT, "tenant": "bolt"}):
        await ask(LINES, body)
    for tenant in ("acme", "bolt"):
        file = await ask("export", key=tenant, month="2026-11")
        statement = (await ask(f"statements/{tenant}", key=tenant, month="2026-11", format="json")).json()
        total = sum(Decimal(row["BilledCost"]) for row in csv.DictReader(io.StringIO(file.text)))
        assert round(total * 100) == statement["amount_cents"]
        assert statement["manual_lines"][0]["reason"] == CREDIT["reason"]


async def test_another_person_approves_a_line(staff):
    pending = await staff("k1", LINES, CREDIT)
    own, approved = [await staff(key, f"{LINES}/1/approve", {}) for key in ("k1", "k2")]
    assert (pending.json()["state"], approved.json()["state"]) == ("pending", "approved")
    assert (own.status_code, own.json()["error"]["code"]) == (403, "second_person_required")
    assert (approved.json()["requested_by"], approved.json()["approved_by"]) == ("key:k1", "key:k2")


async def test_another_person_closes_a_month_on_the_same_terms(staff):
    none = {"policy": "none"}
    answers = [
        await staff(key, "periods/2026-11/close", terms)
        for key, terms in (("k1", {}), ("k1", {}), ("k2", none), ("k1", none), ("k1", none))
    ]
    assert [answer.status_code for answer in answers] == [202, 202, 202, 200, 200]
    _, asked, other_terms, closed, again = [answer.json() for answer in answers]
    assert asked["request"]["requested_by"] == "key:k1"
    assert other_terms["request"]["requested_by"] == "key:k2", "it replaces the first"
    assert (closed["state"], closed["already"], again["already"]) == ("closed", False, True)

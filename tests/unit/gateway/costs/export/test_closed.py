"""A closed month: what the files say, the statements say, and the invoice says is one."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest
from sqlalchemy import select

from gateway.costs.allocation import AllocationPolicy
from gateway.costs.closing.closing import close
from gateway.costs.export.files import Order, export
from gateway.costs.periods import month_of
from gateway.costs.policies.standing import set_policy
from gateway.costs.statement.statement_figures import read_statement
from gateway.metering.ledger.schema import period_tenants, periods
from gateway.units import DAY
from tests.support.ledger_rows import price
from tests.unit.gateway.costs.export.month import MONTH, fill, total
from tests.unit.gateway.costs.export.test_focus import rows_of

LATER = month_of(MONTH).end + DAY
SHARES = {"acme": 3, "bolt": 1, "echo": 1}


def fill_and_close(ledger, policy):
    fill(ledger)
    close(ledger, MONTH, now=LATER, by="test", policy=policy, shares=SHARES if policy == "fixed" else None)


@pytest.fixture(params=["none", "proportional", "even", "fixed"])
def closed(request, ledger_with):
    return ledger_with(fill_and_close, request.param)


def month_totals(ledger):
    with ledger.read() as connection:
        return json.loads(connection.execute(select(periods.c.document)).scalar_one())["summary"]["totals"]


def documents(ledger) -> dict[str, dict]:
    with ledger.read() as connection:
        rows = connection.execute(select(period_tenants.c.tenant, period_tenants.c.document)).all()
        return {row.tenant: json.loads(row.document) for row in rows}


def test_chargeback_is_the_infrastructure_and_sums_to_each_statement(closed):
    charged = rows_of(closed, "1.4", "chargeback")
    totals = month_totals(closed)
    left = Decimal(totals["unallocated"]["cost"]) + Decimal(totals["retry_waste"]["cost"])
    assert total(charged) == total(rows_of(closed, "1.4", "infrastructure")) == Decimal(totals["cost"])
    assert total(row for row in charged if not row["SubAccountId"]) == left, "nobody is charged for it"
    rows = [row for row in charged if row["SubAccountId"]]
    own = rows_of(closed, "1.4", "chargeback", tenants=("bolt",))
    assert own == [row for row in rows if row["SubAccountId"] == "bolt"]
    found = documents(closed)
    assert {"acme", "bolt", "corgi", "delta"} <= set(found)
    for tenant, document in found.items():
        mine = [row for row in rows if row["SubAccountId"] == tenant]
        assert total(mine) == Decimal(document["cost"])
    assert {row["SubAccountId"] for row in rows} <= set(found)


def test_statements_divide_what_was_sealed_without_rounding_anew(closed):
    found = documents(closed)
    with closed.read() as connection:
        statements = [read_statement(connection, tenant, MONTH, known=False) for tenant in found]
    totals = month_totals(closed)
    for statement in statements:
        document = found[statement.tenant]
        parts = (*statement.usage, *statement.allocated, *statement.corrections)
        assert sum(item.cents for item in parts) == statement.cents == document["amount_cents"]
        assert statement.period_hash is not None
        assert statement.period_hash.tenant_root == document["root"]
    assert sum(statement.cents for statement in statements) == totals["billed"]["amount_cents"]


def test_a_file_of_a_closed_month_does_not_change_with_the_price_book(closed):
    before = rows_of(closed, "1.2", "chargeback")
    for region in ("eu", "us", ""):  # in the others it would be the list price
        price(closed, "H100", "9", month_of(MONTH).start + DAY, currency="EUR", region=region, now=LATER)
    assert rows_of(closed, "1.2", "chargeback") == before


def test_nothing_jumps_at_the_close(ledger_with):
    """The chargeback went from 1,432.14 to 2,948.67."""
    ledger = ledger_with(fill)
    set_policy(ledger, AllocationPolicy("proportional"), by="k", reason="", now=LATER)
    set_policy(ledger, AllocationPolicy(), tenant="corgi", by="k", reason="", now=LATER)
    before = {v: rows_of(ledger, v, "chargeback") for v in ("1.2", "1.4")}
    own = rows_of(ledger, "1.2", "chargeback", tenants=("bolt",))
    assert total(before["1.2"]) == total(rows_of(ledger, "1.2", "infrastructure"))
    close(ledger, MONTH, now=LATER, by="test")
    assert before == {v: rows_of(ledger, v, "chargeback") for v in ("1.2", "1.4")}
    assert own == [row for row in before["1.2"] if row["SubAccountId"] == "bolt"]
    shared = {row["SubAccountId"] for row in before["1.2"] if row["x_Bucket"] == "allocated"}
    assert {"acme", "bolt"} <= shared
    assert "corgi" not in shared
    for tenant, document in documents(ledger).items():
        mine = [row for row in before["1.2"] if row["SubAccountId"] == tenant]
        assert total(mine) == Decimal(document["cost"])


def test_an_order_that_was_given_up_makes_no_file(ledger_with, tmp_path):
    with pytest.raises(FileNotFoundError):
        export(ledger_with(fill), Order(MONTH, "focus-1.2", "chargeback", "x"), tmp_path / "gone.csv")
    assert not (tmp_path / "gone.csv").exists()

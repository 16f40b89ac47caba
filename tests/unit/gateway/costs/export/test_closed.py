"""A closed month: what the files say, the statements say, and the invoice says is one."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest
from sqlalchemy import select

from gateway.costs.closing.closing import close
from gateway.costs.export.files import Order, export
from gateway.costs.periods import DAY, month
from gateway.costs.statement.statement_figures import read_statement
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import period_tenants, periods
from tests.unit.gateway.costs.export.month import MONTH, fill
from tests.unit.gateway.costs.export.test_focus import rows_of, total

LATER = month(MONTH).end + DAY
SHARES = {"acme": 3, "bolt": 1, "echo": 1}


@pytest.fixture(params=["none", "proportional", "even", "fixed"])
def closed(request, tmp_path):
    ledger = Ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
    fill(ledger)
    close(
        ledger,
        MONTH,
        now=LATER,
        by="test",
        policy=request.param,
        shares=SHARES if request.param == "fixed" else None,
    )
    yield ledger
    ledger.close()


def documents(ledger) -> dict[str, dict]:
    with ledger.read() as connection:
        rows = connection.execute(select(period_tenants.c.tenant, period_tenants.c.document)).all()
        return {row.tenant: json.loads(row.document) for row in rows}


def test_chargeback_sums_to_each_statement(closed, tmp_path):
    rows = [row for row in rows_of(closed, tmp_path, "1.2", "chargeback") if row["SubAccountId"]]
    found = documents(closed)
    assert {"acme", "bolt", "corgi", "delta"} <= set(found)
    for tenant, document in found.items():
        mine = [row for row in rows if row["SubAccountId"] == tenant]
        assert total(mine) == Decimal(document["cost"])
    assert {row["SubAccountId"] for row in rows} <= set(found)


def test_chargeback_is_the_infrastructure_and_says_what_nobody_is_charged_for(closed, tmp_path):
    with closed.read() as connection:
        totals = json.loads(connection.execute(select(periods.c.document)).scalar_one())["summary"]["totals"]
    left = Decimal(totals["unallocated"]["cost"]) + Decimal(totals["retry_waste"]["cost"])
    infrastructure = rows_of(closed, tmp_path, "1.4", "infrastructure")
    charged = rows_of(closed, tmp_path, "1.4", "chargeback")
    assert total(charged) == total(infrastructure)
    assert total([row for row in charged if not row["SubAccountId"]]) == left
    assert total(infrastructure) == Decimal(totals["cost"])


def test_a_tenant_s_own_file_has_its_share(closed, tmp_path):
    everybody = rows_of(closed, tmp_path, "1.2", "chargeback")
    own = rows_of(closed, tmp_path, "1.2", "chargeback", tenants=("bolt",))
    assert own == [row for row in everybody if row["SubAccountId"] == "bolt"]


def test_statements_divide_what_was_sealed_without_rounding_anew(closed):
    found = documents(closed)
    with closed.read() as connection:
        statements = [read_statement(connection, tenant, MONTH, known=False) for tenant in found]
        totals = json.loads(connection.execute(select(periods.c.document)).scalar_one())["summary"]["totals"]
    for statement in statements:
        document = found[statement.tenant]
        parts = (*statement.usage, *statement.allocated, *statement.corrections)
        assert sum(item.cents for item in parts) == statement.cents == document["amount_cents"]
        assert statement.period_hash is not None
        assert statement.period_hash.tenant_root == document["root"]
    assert sum(statement.cents for statement in statements) == totals["billed"]["amount_cents"]


def test_a_file_of_a_closed_month_does_not_change_with_the_price_book(closed, tmp_path):
    from gateway.costs.prices.price_store import add_price

    before = rows_of(closed, tmp_path, "1.2", "chargeback")
    for region in ("eu", "us", ""):  # in the others it would be the list price
        add_price(
            closed, gpu_type="H100", rate="9", currency="EUR", purchase="on_demand", region=region,
            valid_from=month(MONTH).start + DAY, valid_to=None, now=LATER,
        )  # fmt: skip
    assert rows_of(closed, tmp_path, "1.2", "chargeback") == before


def test_nothing_jumps_at_the_close(tmp_path):
    """The chargeback went from 1,432.14 to 2,948.67."""
    from gateway.costs.allocation import AllocationPolicy
    from gateway.costs.policies.standing import set_policy

    ledger = Ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
    fill(ledger)
    set_policy(ledger, AllocationPolicy("proportional"), by="k", reason="", now=LATER)
    set_policy(ledger, AllocationPolicy(), tenant="corgi", by="k", reason="", now=LATER)
    before = {v: rows_of(ledger, tmp_path, v, "chargeback") for v in ("1.2", "1.4")}
    own = rows_of(ledger, tmp_path, "1.2", "chargeback", tenants=("bolt",))
    assert total(before["1.2"]) == total(rows_of(ledger, tmp_path, "1.2", "infrastructure"))
    close(ledger, MONTH, now=LATER, by="test")
    assert before == {v: rows_of(ledger, tmp_path, v, "chargeback") for v in ("1.2", "1.4")}
    assert own == [row for row in before["1.2"] if row["SubAccountId"] == "bolt"]
    shared = {row["SubAccountId"] for row in before["1.2"] if row["x_Bucket"] == "allocated"}
    assert {"acme", "bolt"} <= shared
    assert "corgi" not in shared
    for tenant, document in documents(ledger).items():
        mine = [row for row in before["1.2"] if row["SubAccountId"] == tenant]
        assert total(mine) == Decimal(document["cost"])
    ledger.close()


def test_an_order_that_was_given_up_makes_no_file(closed, tmp_path):
    with pytest.raises(FileNotFoundError):
        export(closed, Order(MONTH, "focus-1.2", "chargeback", "x"), tmp_path / "gone.csv")
    assert not (tmp_path / "gone.csv").exists()

"""The upgrade of books from before revisions 0015 to 0020: what was closed and invoiced stays as it was, in a
currency without cents too, and is in the chain from then on."""

from __future__ import annotations

import csv
import json
from decimal import Decimal

import pytest
from sqlalchemy import MetaData, create_engine, delete, func, insert, select, text

from gateway.costs.closing.closing import close
from gateway.costs.export.files import Order, export
from gateway.costs.proofs.proof import verify_proof
from gateway.costs.reports.closed_months import proof_of
from gateway.costs.rollups.rollup import roll
from gateway.costs.statement.charge_rows import month_charges
from gateway.costs.statement.page import statement_json
from gateway.costs.verification.chain_check import verify_chain
from gateway.costs.verification.verify import verify
from gateway.metering.ledger import migrations
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import invoices, ledger_state, periods
from gateway.units import HOUR
from tests.support.ledger_rows import price, put
from tests.unit.gateway.costs.selling.cards import sell
from tests.unit.gateway.costs.selling.sold import (
    END,
    LATE,
    NOVEMBER,
    NOW,
    OCTOBER,
    attempt,
    close_october,
    fill_to_the_end,
    up,
)

MARK = "earlier_rules_before"
"""What the upgrade writes. Where it is, months are divided and rounded as they were then."""
ROOTS = ["d8154fb4b49c782f", "61a3e907507f2d01"]
"""Of the months in USD. The release before had the same statements, and no `charging` in the terms."""
TENANTS = ("acme", "bolt", "corgi")


def in_yen(ledger):
    """With a price that changes within an hour."""
    price(ledger, "H100", "412.718281", currency="JPY")
    price(ledger, "H100", "398.11", OCTOBER + HOUR // 3, currency="JPY")
    for name, start in (("oct", OCTOBER), ("nov", NOVEMBER)):
        ledger.insert(
            [attempt(f"{name} {n} {who}", who, start + n) for n in range(3) for who in ("acme", "bolt")]
        )
        up(ledger, start)
    sell(ledger, "acme", currency="JPY", input_micros=90_000_777)
    sell(ledger, "corgi", name="small", currency="JPY", minimum_micros=2_500_000_000)
    close_october(ledger)
    ledger.insert([attempt("late", "acme", OCTOBER + HOUR, **LATE)])
    roll(ledger, NOW)


def closed_then(url, fill):
    """A ledger as the release before leaves it, closed to the end, with an invoice."""
    ledger = Ledger(url)
    put(ledger, ledger_state, {"name": MARK, "value": END})
    fill(ledger)
    close(ledger, "2026-11", now=NOW, by="test", policy="proportional" if fill is in_yen else None)
    row = {"month": "2026-10", "tenant": "acme", "number": "A-1", "tax_name": "VAT", "tax_micros": 19_000_000}
    put(ledger, invoices, {**row, "due": "", "recorded_at": NOW})
    return ledger


def put_back(ledger, url):
    """Its rows into a database of revision 0014."""
    engine, tables = create_engine(url), MetaData()
    with engine.begin() as connection, ledger.read() as source:
        migrations.upgrade(connection, "0014")
        tables.reflect(connection)
        for table in tables.sorted_tables:
            if table.name != "alembic_version":
                if connection.execute(select(func.count()).select_from(table)).scalar():
                    connection.execute(delete(table))
                rows = [dict(row) for row in source.execute(select(*table.columns)).mappings()]
                if rows:
                    connection.execute(insert(table), rows)
        connection.execute(text(f"DELETE FROM ledger_state WHERE name = '{MARK}'"))
    engine.dispose()


def shown(ledger):
    """Of each closed month its seal, and of each tenant its statement and what is stored of it."""
    with ledger.read() as connection:
        roots = connection.execute(select(periods.c.root).order_by(periods.c.month)).scalars().all()
        query = "SELECT month, tenant, document FROM period_tenants ORDER BY month, tenant"
        stored = [tuple(row) for row in connection.execute(text(query))]
    statements = [
        statement_json(ledger, tenant, month, issuer="N", now=NOW, known=True)
        for month in ("2026-10", "2026-11")
        for tenant in TENANTS
    ]
    return roots, stored, json.dumps(statements, sort_keys=True)


def charged_in_files(ledger, tenant, month, path):
    """In hundredths, before tax: by the file of all charges, and by the customer's own."""
    with ledger.read() as connection:
        rows = list(month_charges(connection, month, (tenant,)))
    path.touch()
    export(ledger, Order(month, "focus-1.2", "chargeback", "N", customer=tenant, tenants=(tenant,)), path)
    own = csv.DictReader(path.read_text().splitlines())
    return (
        sum(row["amount"].units for row in rows if row["line"] != "tax"),
        sum(Decimal(row["BilledCost"]) for row in own) * 100,
    )


@pytest.mark.parametrize("fill", [fill_to_the_end, in_yen])
def test_closed_months_and_invoices_stay_as_they_were(blank_url, tmp_path, fill):
    before = closed_then(f"sqlite:///{tmp_path}/before.db", fill)
    put_back(before, blank_url)
    after = Ledger(blank_url)
    assert shown(after) == shown(before)
    if fill is fill_to_the_end:
        assert [root[:16] for root in shown(after)[0]] == ROOTS
    else:
        amounts = [line["amount_cents"] for line in json.loads(shown(after)[2])]
        assert any(cents % 100 for cents in amounts), "they were rounded to hundredths"
    for month in verify(after):
        assert [check for check in month.checks if check.ok is not True] == [], month
    chained = verify_chain(after)
    assert (chained.ok, chained.entries > 0) == (True, True)
    assert {"closed months", "invoices", "rate cards"} <= {check.name for check in chained.checks}
    for tenant in TENANTS:
        proof = proof_of(after, "2026-10", tenant, for_tenant=True)
        assert [check for check in verify_proof(proof, None, proof["seal"]) if check.ok is False] == []
    for statement in json.loads(shown(after)[2]):
        cents = charged_in_files(after, statement["tenant"], statement["month"], tmp_path / "file.csv")
        assert cents[0] == statement["amount_cents"]
        assert abs(cents[1] - statement["amount_cents"]) < 1
    after.close()
    before.close()

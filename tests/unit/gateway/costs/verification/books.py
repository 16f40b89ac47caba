"""A closed month with everything that is written to the books beside it: one row of each kind at least."""

from __future__ import annotations

import tempfile
from pathlib import Path

from sqlalchemy import delete

from gateway.costs.allocation import AllocationPolicy
from gateway.costs.calibration.fit import TERMS
from gateway.costs.calibration.store import add_calibration
from gateway.costs.closing.closing import close
from gateway.costs.closing.requests import request_or_approve
from gateway.costs.commitments.commitment_store import add_commitment
from gateway.costs.credits.store import add_grant
from gateway.costs.manual_lines.store import request_line
from gateway.costs.policies.standing import set_policy
from gateway.costs.reconciliation.acceptances import accept
from gateway.costs.reconciliation.bill_files import BillFormat
from gateway.costs.reconciliation.bills import import_bill
from gateway.costs.reconciliation.reconcile import TOLERANCE, reconcile
from gateway.costs.reconciliation.true_up_store import record_true_up
from gateway.costs.selling.invoices import Invoice
from gateway.costs.statement.issuing import issue
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.quarantine import dismiss
from gateway.metering.ledger.schema import dirty_hours, quarantine
from gateway.units import DAY
from tests.support.ledger_rows import exchange_rate, put
from tests.unit.gateway.costs import billed
from tests.unit.gateway.costs.credits.test_credits import grant
from tests.unit.gateway.costs.manual_lines.lines import line
from tests.unit.gateway.costs.selling.cards import sell

MONTH, ACTOR = "2026-11", "key:fk1"
NOW = billed.NOW + DAY


def fill(ledger: Ledger) -> None:
    billed.fill(ledger)
    with ledger.write() as connection:
        connection.execute(delete(dirty_hours))  # rolled up by hand
    by = {"now": NOW, "actor": ACTOR}
    exchange_rate(ledger, "0.92", billed.NOVEMBER.start, actor=ACTOR)
    sell(ledger, "acme", since=MONTH)
    set_policy(ledger, AllocationPolicy("even"), by="fk1", reason="agreed", **by)
    add_commitment(
        ledger, gpu_type="H100", region="", gpus=1, valid_from=billed.NOVEMBER.end, valid_to=billed.NOVEMBER.end + DAY,
        rate="2", upfront="0", currency="USD", description="", by="fk1", **by,
    )  # fmt: skip
    add_calibration(
        ledger, gpu_type="H100", base_model="other", engine_version="1", valid_from=None,
        weights_ps=dict.fromkeys(TERMS, 7), document={}, **by,
    )  # fmt: skip
    _import(ledger, billed.line(0, hours=2, cost="5.60"))
    bill = reconcile(ledger, MONTH, now=NOW)["bill"]
    lines = [line["line"] for account in bill["accounts"] for line in account["lines"]]
    accept(ledger, MONTH, lines=lines, reason="agreed", by="fk1", **by)
    record_true_up(ledger, MONTH, tolerance=TOLERANCE, invoice=None, by="fk1", **by)
    request_line(
        ledger, line("credit", 100, requested_at=NOW, requested_by=ACTOR), approved=True, actor=ACTOR
    )
    add_grant(ledger, grant(begins=MONTH), actor=ACTOR)
    request_or_approve(ledger, MONTH, "{}", **by)
    put(
        ledger, quarantine, {"id": "r9", "digest": "d", "content": "{}", "recorded_at": 1, "reason": "pruned"}
    )
    dismiss(ledger, ["r9"], reason="Shipped twice", by="fk1", **by)
    close(ledger, MONTH, by="fk1", policy="none", **by)
    issue(ledger, Invoice(MONTH, "acme", "A-1", "VAT", 19_000_000, "", NOW), issuer="N", actor=ACTOR)


def _import(ledger: Ledger, line: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "bill.csv")
        path.write_text(f"{billed.HEAD}{line}\n")
        import_bill(
            ledger, str(path), file_name="b", reading=BillFormat(), skip_bad=False, now=NOW, actor=ACTOR
        )

"""One rounding: the operator's report, a tenant's own report and the statement have the same cents."""

from __future__ import annotations

from decimal import Decimal

import pytest

from gateway.costs.allocation import AllocationPolicy
from gateway.costs.closing.closing import close
from gateway.costs.periods import month_of
from gateway.costs.policies.standing import set_policy
from gateway.costs.reports.report import Question, cost_report
from gateway.costs.statement.statement_figures import read_statement
from gateway.units import DAY
from tests.unit.gateway.costs.export.month import MONTH, fill

LATER = month_of(MONTH).end + DAY
TENANTS = ("acme", "bolt", "corgi", "delta", "echo")
GROUPINGS = (
    ("tenant",),
    ("tenant", "adapter", "gpu_type"),
    ("adapter",),
    ("tenant", "version", "gpu_type"),
    ("tenant", "day"),
    ("tenant", "engine", "hour"),
)
POLICIES = {
    "none": AllocationPolicy(),
    "proportional": AllocationPolicy("proportional"),
    "even": AllocationPolicy("even", own={"acme": "none"}),
    "fixed": AllocationPolicy("fixed", {"acme": 3, "bolt": 1, "echo": 1}),
}


def fill_with(ledger, name):
    """A month with corrections, in which a policy holds."""
    fill(ledger)
    policy = POLICIES[name]
    set_policy(ledger, policy, by="k", reason="", now=LATER)
    for tenant, own in policy.own.items():
        set_policy(ledger, AllocationPolicy(own), tenant=tenant, by="k", reason="", now=LATER)


@pytest.fixture(params=POLICIES)
def filled(request, ledger_with):
    return ledger_with(fill_with, request.param)


def report_of(ledger, **question):
    return cost_report(ledger, Question(month_of(MONTH), **question), now=LATER)


def billed(report):
    """What a tenant's report adds up to."""
    parts = (report["totals"], report["corrections"]["totals"])
    return sum(part.get(name, 0) for part in parts for name in ("amount_cents", "allocated_amount_cents"))


def statement_cents(ledger, tenant):
    with ledger.read() as connection:
        made = read_statement(connection, tenant, MONTH, known=True)
    return made.cents


def check(ledger):
    """Every report agrees with every statement; returns the statements' cents."""
    whole = report_of(ledger, by=("tenant",))
    statements = {tenant: statement_cents(ledger, tenant) for tenant in TENANTS}
    assert whole["billed_cents"] == sum(statements.values())
    for number, by in enumerate(GROUPINGS):
        everyone = report_of(ledger, by=by)
        assert sum(row["amount_cents"] for row in everyone["rows"]) == everyone["totals"]["amount_cents"]
        for row in everyone["rows"]:  # within a cent for each line of a statement
            assert abs(Decimal(row["amount_cents"]) / 100 - Decimal(row["cost"])) < Decimal("0.2")
        for tenant in TENANTS if number == 0 else TENANTS[number - 1 : number]:
            own = report_of(ledger, by=by, tenants=(tenant,))
            assert own["billed_cents"] == billed(own) == statements[tenant]
            if "tenant" in by:
                assert own["rows"] == [row for row in everyone["rows"] if row["tenant"] == tenant]
    parts = ("retry_waste", "headroom", "startup", "idle", "corrections")
    cents = [whole["totals"], *(whole[name]["totals"] for name in parts)]
    assert sum(part["amount_cents"] for part in cents) == whole["provisioned"]["amount_cents"]
    return statements


def test_reports_and_statements_agree_before_and_after_closing(filled):
    """780.74 and 825.49 to the operator, 825.48 to the tenant, 780.73 on the statement."""
    before = check(filled)
    close(filled, MONTH, now=LATER, by="key")
    assert check(filled) == before


def test_rows_without_customers_that_are_finer_than_statements_have_no_amount(ledger_with):
    report = report_of(ledger_with(fill), by=("hour",))
    assert {row["amount_cents"] for row in report["rows"]} == {None}
    assert report["totals"]["amount_cents"] > 0

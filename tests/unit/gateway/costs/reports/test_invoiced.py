"""A report leads from list price to the invoice, and to unused commitments before there is one."""

from decimal import Decimal

from gateway.costs.commitments.commitment_store import add_commitment
from gateway.costs.periods import Period, month_of
from gateway.costs.reports.report import Question, cost_report
from gateway.units import HOUR
from tests.unit.gateway.costs.billed import NOVEMBER, NOW
from tests.unit.gateway.costs.reconciliation.test_true_up import INVOICE, accept_all, invoice, recorded
from tests.unit.gateway.costs.rolled import row, write


def report(ledger, **changes):
    return cost_report(ledger, Question(NOVEMBER, **changes), now=NOW)


def adds_up(found):
    made, whole = found["invoice"], found["provisioned"]
    for name, number in (("cost", Decimal), ("amount_cents", int)):
        assert number(whole[name]) + sum(number(one[name]) for one in made["lines"]) == number(made[name])
    return made


def reserve(ledger, description="ri-7", **changes):
    add_commitment(
        ledger,
        **{
            "gpu_type": "H100", "region": "", "gpus": 1, "valid_from": NOVEMBER.start,
            "valid_to": NOVEMBER.start + 10 * HOUR, "rate": "1.80", "upfront": "1.00", "currency": "USD",
            "now": 1, "by": "k", **changes,
        },
        description=description,
    )  # fmt: skip  # a row


def test_a_trued_up_month_costs_its_invoice(settled, tmp_path):
    invoice(settled, tmp_path, *INVOICE)
    accept_all(settled)
    recorded(settled)
    made = adds_up(report(settled))
    assert (made["state"], made["cost"], made["amount_cents"]) == ("trued_up", "105.32", 10532)
    assert {one["kind"] for one in made["lines"]} == {"tax", "credit", "purchase", "rate"}
    # A record arrives late: the invoice stays what it is.
    write(settled, row(NOVEMBER.start // HOUR, nano_gpu_hours=1_000_000_000))
    made = adds_up(report(settled))
    assert made["amount_cents"] == 10532
    assert made["lines"][-1]["kind"] == "since_true_up"
    assert Decimal(made["lines"][-1]["cost"]) == Decimal("-2.50")


def test_reserved_capacity_that_nobody_used_is_a_line_before_there_is_an_invoice(settled):
    reserve(settled)
    reserve(settled, "ri-8", gpu_type="B200", upfront="0.005", rate="0")
    made = adds_up(report(settled))
    assert made["state"] == "expected"
    assert [(one["cost"], one["gpu_hours"]) for one in made["lines"]] == [
        ("19.00", "10.00"),
        ("0.005", "10.00"),
    ]
    assert "commitment ri-7" in made["lines"][0]["reason"]
    assert made["amount_cents"] == 2400  # 24.005, half to even


def test_only_in_the_whole_month_s_report_of_all_tenants(settled):
    reserve(settled)
    assert "invoice" not in report(settled, tenants=("acme",))
    part = Question(Period(NOVEMBER.start, NOVEMBER.start + HOUR))
    assert "invoice" not in cost_report(settled, part, now=NOW)
    both = Question(Period(month_of("2026-10").start, NOVEMBER.end))
    assert "invoice" not in cost_report(settled, both, now=NOW)

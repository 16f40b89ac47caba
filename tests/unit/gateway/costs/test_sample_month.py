"""The sample month is what the finance guide shows of it."""

from decimal import Decimal
from pathlib import Path

from gateway.costs.reports.report import Question, cost_report
from gateway.costs.rollups.rollup import roll
from gateway.costs.sample_month.month import MONTH, bill, fill
from gateway.metering.ledger.ledger import Ledger

GUIDE = (Path(__file__).parents[4] / "docs" / "finance.md").read_text()


def test_the_guide_shows_the_samples_figures(tmp_path):
    ledger = Ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
    fill(ledger)
    roll(ledger, MONTH.end)  # a report has half a minute for it
    report = cost_report(ledger, Question(MONTH, ("tenant", "adapter", "gpu_type")), now=MONTH.end)
    ledger.close()
    assert report["complete"]
    assert Decimal(report["provisioned"]["cost"]) == Decimal("2958.15")
    for row in report["rows"]:
        shown = f"{row['requests']:>8,} {row['prompt_tokens']:>10,} {row['cached_tokens']:>15,}"
        assert shown in GUIDE, row
    for name in ("totals", "idle", "retry_waste"):
        figures = report[name]["totals"] if "totals" in report[name] else report[name]
        assert f"{Decimal(figures['cost']):,.2f}" in GUIDE, name


def test_the_bill_has_what_florin_does_not_know_of():
    assert "h100-9" in bill()
    assert bill().count("\n") == 4

from gateway.costs.periods import month_of
from gateway.costs.reports.report import Question, cost_report
from gateway.costs.rollups.rollup import roll
from tests.unit.gateway.costs.selling.sold import NOW, arrive_late, close_october, fill


def test_the_report_of_a_closed_month_says_what_later_months_correct_of_it(ledger):
    fill(ledger)
    roll(ledger, NOW)
    close_october(ledger)
    before = cost_report(ledger, Question(month_of("2026-10")), now=NOW)
    assert before["corrected_later"] == []
    arrive_late(ledger)
    report = cost_report(ledger, Question(month_of("2026-10")), now=NOW)
    [later] = report.pop("corrected_later")
    assert (later["month"], later["requests"]) == ("2026-11", 2)
    assert report == {name: value for name, value in before.items() if name != "corrected_later"}
    november = cost_report(ledger, Question(month_of("2026-11")), now=NOW)
    assert later["cost"] == november["corrections"]["totals"]["cost"]
    assert "corrected_later" not in november

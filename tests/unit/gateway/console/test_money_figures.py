"""What the pages about money compute from the API's answers."""

from __future__ import annotations

from decimal import Decimal

import pytest

from gateway.console.formats import NONE, money, rate
from gateway.console.pages.money.shared import chart, choices, daily, utilization_by_day
from gateway.costs.closing.schemas import Month
from gateway.costs.reports.schemas.costs import CostPart, CostReport, CostRow
from gateway.schemas.base import Listed
from tests.support.samples import sample


def test_the_largest_groups_have_lines_of_their_own_and_the_rest_is_one():
    values = [("2026-10-02", "a", 1.0), ("2026-10-01", "a", 2.0), ("2026-10-01", "b", 9.0)]
    values += [("2026-10-02", "c", 0.5), ("2026-10-02", "d", 0.0)]
    days, lines = daily(values, most=2)
    assert days == ["2026-10-01", "2026-10-02"]
    assert lines == [("b", [9.0, 0.0]), ("a", [2.0, 1.0]), ("2 more", [0.0, 0.5])]
    drawn = chart(days, lines, "USD", "bars")
    assert drawn["x"] == [1790812800, 1790899200]
    assert daily([]) == ([], [])


def part(nano: int, cost: str | None) -> dict:
    return {"rows": [sample(CostRow, day="2026-10-01", gpu_type="H100", nano_gpu_hours=nano, cost=cost)]}


def test_utilization_counts_repeated_requests_as_busy_and_prices_only_the_rest():
    report = sample(
        CostReport,
        **part(6_000_000_000, "6"),
        retry_waste=sample(CostPart, **part(2_000_000_000, "2")),
        startup=sample(CostPart, **part(1_000_000_000, "1.25")),
        idle=sample(CostPart, **part(1_000_000_000, "1")),
    )
    (day,) = utilization_by_day(CostReport.read(report))
    assert (day.provisioned, day.busy, day.share, day.unused_cost) == (10.0, 8.0, 0.8, Decimal("2.25"))
    report["idle"] |= part(1_000_000_000, None)
    assert utilization_by_day(CostReport.read(report))[0].unused_cost is None


def test_this_month_can_always_be_chosen():
    months = Listed[Month].read({"data": [sample(Month, month="2026-09")]})
    chosen = choices(months, "2026-10", 1_795_442_400_000_000)
    assert [value for value, _ in chosen] == ["2026-11", "2026-10", "2026-09"]


@pytest.mark.parametrize(
    ("amount", "shown"),
    [
        ("1432.1398238761", "1,432.14 USD"),
        ("0.16583333466", "0.165833 USD"),
        ("0.10", "0.10 USD"),
        ("-1526.01", "-1,526.01 USD"),
        (Decimal("-0.000001"), "-0.000001 USD"),
        (0, "0.00 USD"),
        (None, NONE),
    ],
)
def test_money_is_in_cents_unless_there_are_few(amount, shown):
    assert money(amount, "USD") == shown


def test_money_has_the_places_of_its_currency():
    """A price of a GPU-hour is no amount that someone pays."""
    assert (money("165800.95", "JPY"), rate("373.5", "JPY")) == ("165,801 JPY", "373.50 JPY")

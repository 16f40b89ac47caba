"""What scaling to zero saved: the time between a kind's first and last engine in which none ran."""

from __future__ import annotations

import pytest

from gateway.costs.periods import month_of
from gateway.costs.reports.report import Question, cost_report
from gateway.metering.ledger.schema import engine_hours
from gateway.units import HOUR
from tests.support.ledger_rows import engine_hour, price, put

NOVEMBER = month_of("2026-11")
FIRST = NOVEMBER.start // HOUR
KIND = {"base_model": "base", "gpu_type": "H100", "gpu_count": 2, "region": "", "purchase": "on_demand"}


def saved(ledger, *hours):
    put(ledger, engine_hours, *(engine_hour(FIRST + n, part, **{**KIND, **more}) for n, part, more in hours))
    return cost_report(ledger, Question(NOVEMBER), now=10**17)["without_engine"]


def test_gaps_between_engines_count_at_the_price_of_one(ledger):
    """Two whole hours and a quarter; not what was before the first and after the last, nor what another one ran."""
    price(ledger, rate="3.00")
    shown = saved(
        ledger,
        *((2, 0.5, {}), (5, 0.5, {}), (5, 0.25, {"engine": "other"}), (6, 1, {}), (6, 1, {"engine": "other"})),
        (9, 0.1, {"purchase": "spot"}), (7, 0.1, {}),
    )  # fmt: skip
    assert shown == [{**KIND, "gpu_hours": "4.50", "cost": "13.50"}]


@pytest.mark.parametrize(
    ("hours", "expected"),
    [
        (((1, 1, {}), (3, 1, {})), "2.00"),
        (((1, 1, {}), (2, 0.25, {}), (3, 1, {})), None),  # a restart
        (((1, 1, {}), (2, 1, {"engine": "other"}), (3, 1, {})), None),
        (((1, 1, {}),), None),
    ],
)
def test_an_hour_is_the_least_that_is_shown_and_a_missing_price_is_none(ledger, hours, expected):
    rows = [(row["gpu_hours"], row["cost"]) for row in saved(ledger, *hours)]
    assert rows == ([(expected, None)] if expected else [])


def test_no_tenant_sees_it(ledger):
    put(ledger, engine_hours, *(engine_hour(FIRST + n) for n in (1, 3)))
    assert "without_engine" not in cost_report(ledger, Question(NOVEMBER, tenants=("acme",)), now=10**17)

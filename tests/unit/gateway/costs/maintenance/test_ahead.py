"""The look ahead as a step of maintenance: its series, its alerts, and how rarely it looks."""

from __future__ import annotations

import pytest

from gateway.costs.credits.grants import Grant
from gateway.costs.credits.store import add_grant
from gateway.costs.forecasting.alerts import list_alerts
from gateway.costs.forecasting.budgets import set_budget
from gateway.costs.maintenance.ahead import EVERY, ahead
from gateway.costs.maintenance.maintenance_job import maintain, read_figures
from gateway.costs.periods import month_of
from gateway.observability.metric_names import LEDGER_METRICS
from gateway.units import DAY, HOUR, Cents
from tests.support.ledger_rows import price
from tests.unit.gateway.costs.rolled import row, write

START = month_of("2026-10").start
NOW = START + 10 * DAY + HOUR


@pytest.fixture
def filled(ledger):
    price(ledger)
    first = START // HOUR
    days = [row(first + 24 * n, nano_gpu_hours=(40 if n == 9 else 8) * 10**9) for n in range(10)]
    write(ledger, *days)
    set_budget(ledger, tenant="acme", amount="200", first=None, warn_percent=50, now=NOW)
    return ledger


def test_every_series_belongs_to_a_metric_and_has_its_labels(filled):
    found = ahead(filled, NOW)
    assert {len(labels) for name, series in found.items() for labels, _ in series} == {1, 2, 3}
    for name, series in found.items():
        assert all(len(labels) == len(LEDGER_METRICS[name]) for labels, _ in series), name
    assert found["florin_month_cost"] == [(("USD",), 224.0)]
    assert found["florin_tenant_month_cost"] == [(("acme", "USD", "cost"), 224.0)]
    assert found["florin_cost_budget_used_ratio"] == [(("acme",), 1.12)]
    assert {tuple(labels): value for labels, value in found["florin_cost_anomaly_ratio"]} == {
        ("tenant", "acme"): 5.0, ("adapter", "acme/support"): 5.0,
    }  # fmt: skip


def test_it_looks_every_ten_minutes_and_raises_alerts_once(filled):
    first = ahead(filled, NOW)
    raised = list_alerts(filled)
    assert {alert["type"] for alert in raised} == {
        "cost.anomaly", "cost.budget_reached", "cost.budget_warning",
    }  # fmt: skip
    write(filled, row(START // HOUR + 24 * 10, nano_gpu_hours=8 * 10**9))
    kept = ahead(filled, NOW + EVERY - 1)
    assert kept["florin_month_cost"] == [[["USD"], 224.0]]
    assert ahead(filled, NOW + EVERY + 1)["florin_month_cost"] != first["florin_month_cost"]
    assert list_alerts(filled) == raised


def test_credits_warn_before_they_are_used_up_and_again_after_a_top_up(filled):
    def types():
        return sorted(alert["type"] for alert in list_alerts(filled) if "credits" in alert["type"])

    def grant(cents):
        new = Grant(0, "acme", Cents(cents), "2026-10", "", 50, "Payment", "", NOW, "key:a")
        add_grant(filled, new, actor="key:a")

    grant(25_000)  # of which 224.00 are drawn
    for n in range(2):
        ahead(filled, NOW + n * (EVERY + 1))
        assert types() == ["cost.credits_low"]
    grant(1_000)
    ahead(filled, NOW + 2 * (EVERY + 1))
    assert types() == ["cost.credits_low"] * 2


def test_maintenance_exports_it(filled):
    maintain(filled, NOW, 0)
    figures = read_figures(filled, after=-1)
    assert [value for _, value in figures.series["florin_month_cost"]] == [224.0]
    assert [tuple(labels) for labels, _ in figures.series["florin_month_cost_forecast"]] == [
        ("expected", "USD"), ("low", "USD"), ("high", "USD"),
    ]  # fmt: skip

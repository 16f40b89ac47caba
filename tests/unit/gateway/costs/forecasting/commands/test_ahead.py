"""florin cost forecast, budget, anomalies, alerts: what they ask, print, and how they end."""

from __future__ import annotations

import json

import pytest

FORECAST, BUDGETS = "/finance/v1/forecast", "/finance/v1/budgets"
ROW = {
    "tenant": "acme", "priced_by": "rate_card", "so_far": "379.527", "expected": "781.86", "low": "776.56", "high": "787.17",
    "days_known": 15, "method": "weekday", "budget": "750.00", "status": "forecast_over", "used_percent": "50.6",
}  # fmt: skip
WHOLE = {
    "priced_by": "cost", "so_far": "1429.83", "expected": "2956.17", "low": "2949.15", "high": "2963.19", "days_known": 15,
    "method": "weekday", "budget": None, "status": None, "used_percent": None,
}  # fmt: skip
BODY = {
    "month": "2026-10", "currency": "USD", "as_of": "2026-10-16T00:00:00Z", "complete_days": 15, "days": 31,
    "confidence_percent": 80, "policy": "none", "missing_prices": [], "complete": True, "installation": WHOLE,
    "rows": [ROW],
}  # fmt: skip
BUDGET = {
    "tenant": "acme", "from": "2026-10", "amount": "750.00", "currency": "USD", "warn_percent": 80,
    "recorded_at": "2026-10-01T00:00:00Z",
}  # fmt: skip
SPIKE = {
    "kind": "adapter", "subject": "acme/support", "tenant": "acme", "day": "2026-10-10", "since": "2026-10-09",
    "priced_by": "rate_card", "cost": "48.00", "habit": "12.00", "ratio": "4.00",
}  # fmt: skip
IDLER = {
    **SPIKE,
    "kind": "engine",
    "subject": "gpu-b\x1b[31m",
    "tenant": None,
    "habit": None,
    "ratio": "0.9583",
}
ANOMALIES = {
    "currency": "USD", "as_of": "x", "factor": "3.00", "idle_percent": "95.00", "complete": True,
    "data": [SPIKE, IDLER],
}  # fmt: skip


def test_a_forecast_has_a_line_for_each_tenant_and_the_whole(fake):
    fake.answer("GET", f"{FORECAST}?month=2026-10&confidence=95&as_of=2026-10-16", BODY)
    done = fake.florin(
        "cost", "forecast", "--month", "2026-10", "--confidence", "95", "--as-of", "2026-10-16"
    )
    assert done.exit_code == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[1].split() == [
        "acme",
        "379.53",
        "781.86",
        "776.56",
        "787.17",
        "750.00",
        "forecast",
        "over",
        "charge",
    ]
    assert lines[-1].split("  ")[0] == "provisioned GPU cost at list price"
    assert "15 of 31 days are complete" in done.stderr
    assert "exclude unused time" in done.stderr


def test_a_tenant_s_forecast_has_no_whole_and_may_know_too_little(fake):
    row = {
        **ROW,
        "expected": None,
        "low": None,
        "high": None,
        "method": "none",
        "budget": None,
        "status": None,
    }
    body = {**BODY, "rows": [row], "complete": False}
    del body["installation"]
    fake.answer("GET", f"{FORECAST}?confidence=80", body)
    done = fake.florin("cost", "forecast")
    assert done.stdout.splitlines()[1].split() == ["acme", "379.53", *"----", "charge"]
    assert "two complete days" in done.stderr
    assert "still arriving" in done.stderr
    assert json.loads(fake.florin("cost", "forecast", "--json").stdout) == body


@pytest.mark.parametrize(("tenant", "whose"), [("acme", "acme"), (None, "The installation")])
def test_a_budget_is_set(fake, tenant, whose):
    fake.answer("PUT", BUDGETS, {**BUDGET, "tenant": tenant, "changed": True})
    done = fake.florin("cost", "budget", "set", "750", *(["--tenant", tenant] if tenant else []))
    assert done.stdout == f"{whose} may cost 750.00 USD a month from 2026-10 on; warning at 80 %.\n"
    [(_, _, asked)] = fake.asked
    assert asked == {"tenant": tenant, "amount": "750", "from": None, "warn_percent": 80}


def test_a_budget_is_removed(fake):
    gone = {"tenant": "acme", "from": "2026-11", "amount": None}
    fake.answer("PUT", BUDGETS, {**gone, "changed": True})
    assert fake.florin("cost", "budget", "remove", "--tenant", "acme").stdout == (
        "acme has no budget from 2026-11 on.\n"
    )
    fake.answer("PUT", BUDGETS, {**gone, "changed": False})
    assert "no such budget" in fake.florin("cost", "budget", "remove", "--tenant", "acme").stderr


def test_budgets_are_listed_with_how_the_month_stands(fake):
    body = {
        "month": "2026-10", "currency": "USD", "as_of": "x", "missing_prices": [], "complete": True,
        "data": [{**BUDGET, **ROW}, {**BUDGET, **WHOLE, "tenant": None, "status": "within"}],
    }  # fmt: skip
    fake.answer("GET", f"{BUDGETS}?month=2026-10", body)
    done = fake.florin("cost", "budget", "list", "--month", "2026-10")
    first, second = done.stdout.splitlines()[1:]
    assert first.split() == [
        "acme",
        "750.00",
        "379.53",
        "50.6",
        "%",
        "781.86",
        "forecast",
        "over",
        "2026-10",
        "charge",
    ]
    assert second.startswith("The installation")
    fake.answer("GET", BUDGETS, {**body, "data": []})
    assert "florin cost budget set" in fake.florin("cost", "budget", "list").stderr


def test_anomalies_are_listed(fake):
    fake.answer("GET", "/finance/v1/anomalies?factor=2&idle_percent=95", ANOMALIES)
    done = fake.florin("cost", "anomalies", "--factor", "2")
    first, second = done.stdout.splitlines()[1:]
    assert first.split() == [
        "adapter",
        "acme/support",
        "2026-10-09",
        "2026-10-10",
        "48.00",
        "12.00",
        "4.0",
        "times,",
        "by",
        "rate",
        "card",
    ]
    assert second.rstrip().endswith("95.8% idle")
    assert "\x1b[31m" not in done.stdout
    fake.answer("GET", "/finance/v1/anomalies?factor=3&idle_percent=95", {**ANOMALIES, "data": []})
    assert "Nothing costs 3 times its habit" in fake.florin("cost", "anomalies").stderr


def test_alerts_are_listed_newest_first(fake):
    about = {"id": "x", "raised_at": "2026-10-11T06:00:00Z", "delivered_at": None}
    data = {
        **{name: ROW[name] for name in ("so_far", "expected", "budget")},
        "month": "2026-10",
        "currency": "USD",
    }
    body = {
        "data": [
            {**about, "type": "cost.budget_forecast", "tenant": "acme", "data": data},
            {**about, "type": "cost.anomaly", "tenant": "acme", "data": {**SPIKE, "currency": "USD"}},
        ]
    }
    fake.answer("GET", "/finance/v1/alerts?limit=20", body)
    done = fake.florin("cost", "alerts")
    assert "2026-10: 379.53 of 750.00 USD used, 781.86 expected" in done.stdout
    assert "adapter acme/support: 48.00 USD on 2026-10-10, 4.0 times" in done.stdout
    fake.answer("GET", "/finance/v1/alerts?limit=20", {"data": []})
    assert "No alert" in fake.florin("cost", "alerts").stderr

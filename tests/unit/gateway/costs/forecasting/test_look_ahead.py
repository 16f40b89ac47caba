"""Forecast, budgets, anomalies and alerts of a ledger, on both databases."""

from decimal import Decimal

import pytest

from gateway.costs.forecasting.alerts import (
    GIVEN_UP_AFTER,
    alerts_of,
    list_alerts,
    mark_delivered,
    own_alerts,
    raise_alerts,
    undelivered,
)
from gateway.costs.forecasting.anomalies import Bounds
from gateway.costs.forecasting.budgets import BudgetError, read_budgets, set_budget
from gateway.costs.forecasting.look_ahead import (
    anomaly_report,
    budget_report,
    find_anomalies,
    forecast_report,
    look_ahead,
)
from gateway.costs.owner import Owner
from gateway.costs.periods import PeriodError, month_of
from gateway.metering.ledger.audit_log import Wanted, read
from gateway.metering.ledger.schema import engine_hours
from gateway.units import DAY, HOUR
from tests.support.ledger_rows import engine_hour, price, put
from tests.unit.gateway.costs.rolled import row, write
from tests.unit.gateway.costs.selling.cards import sell

OCTOBER = month_of("2026-10")
FIRST = OCTOBER.start // HOUR
NANO = 10**9
NOW = OCTOBER.start + 10 * DAY + 6 * HOUR


@pytest.fixture
def priced(ledger):
    price(ledger)
    return ledger


@pytest.fixture
def month_so_far(priced):
    """Ten days: acme uses 6 hours a day, on the tenth 24; bolt 1; the rest is idle. And today so far."""
    rows = []
    for day in range(10):
        hour = FIRST + day * 24
        acme = 24 if day == 9 else 6
        rows += [
            row(hour, nano_gpu_hours=acme * NANO),
            row(hour, nano_gpu_hours=NANO, tenant="bolt", adapter="bolt/x", engine="gpu-b"),
            row(hour, nano_gpu_hours=(24 - acme) * NANO, bucket="idle"),
            row(hour, nano_gpu_hours=23 * NANO, bucket="idle", engine="gpu-b"),
        ]
    rows.append(row(FIRST + 240, nano_gpu_hours=NANO))
    write(priced, *rows)
    hours = [(FIRST + day * 24, name) for day in range(10) for name in ("gpu-a", "gpu-b")]
    put(priced, engine_hours, *(engine_hour(hour, 24, engine=name) for hour, name in hours))
    return priced


def by_tenant(report):
    return {one["tenant"]: one for one in report["rows"]}


def test_the_forecast_of_a_month_by_tenant_and_in_all(month_so_far):
    found = forecast_report(month_so_far, "2026-10", now=NOW)
    assert (found["currency"], found["complete_days"], found["days"]) == ("USD", 10, 31)
    whole, bolt = found["installation"], by_tenant(found)["bolt"]
    assert whole["so_far"] == "962.00"  # ten days of 48 hours, and one hour, at 2.00
    assert (whole["expected"], whole["low"], whole["high"]) == ("2976.00", "2976.00", "2976.00")
    assert (bolt["so_far"], bolt["expected"], bolt["method"]) == ("20.00", "62.00", "daily")
    acme = by_tenant(found)["acme"]
    assert Decimal(acme["low"]) < Decimal(acme["expected"]) < Decimal(acme["high"])
    assert acme["so_far"] == "158.00"


def test_a_tenant_sees_itself_alone(month_so_far):
    set_budget(month_so_far, tenant="bolt", amount="1", first="2026-10", warn_percent=80, now=NOW)
    set_budget(month_so_far, tenant="", amount="1", first="2026-10", warn_percent=80, now=NOW)
    found = forecast_report(month_so_far, "2026-10", now=NOW, tenants=("acme",))
    assert "installation" not in found
    assert by_tenant(found).keys() == {"acme"}
    assert forecast_report(month_so_far, "2026-10", now=NOW, tenants=("acme", "bolt"))["rows"] == []
    assert budget_report(month_so_far, "2026-10", now=NOW, tenants=("acme",))["data"] == []


def test_as_of_an_earlier_day_only_what_was_known_counts(month_so_far):
    as_of = OCTOBER.start + 9 * DAY
    found = forecast_report(month_so_far, "2026-10", now=NOW, as_of=as_of)
    assert by_tenant(found)["acme"]["so_far"] == "108.00"
    assert by_tenant(found)["acme"]["expected"] == "372.00"
    assert found["complete_days"] == 9
    for wrong in (NOW + DAY, OCTOBER.start):
        with pytest.raises(PeriodError, match="as_of"):
            forecast_report(month_so_far, "2026-10", now=NOW, as_of=wrong)


def test_a_tenant_with_a_card_is_forecast_by_what_it_is_charged(month_so_far):
    """Each of its 11 rows has 15 tokens."""
    sell(month_so_far, "acme", since="2026-10", input_micros=10**6, cached_micros=10**6, output_micros=10**6)
    budget = {"tenant": "acme", "amount": "0.000165", "first": None, "warn_percent": 80, "now": NOW}
    set_budget(month_so_far, **budget)
    report = forecast_report(month_so_far, "2026-10", now=NOW)
    acme, bolt = (by_tenant(report)[name] for name in ("acme", "bolt"))
    assert (bolt["priced_by"], bolt["so_far"]) == ("cost", "20.00")
    assert report["installation"]["so_far"] == "962.00"
    assert acme["priced_by"] == "rate_card"
    own = forecast_report(month_so_far, "2026-10", now=NOW, tenants=("acme",), owner=Owner("acme", 0))
    assert own["rows"] == [acme]
    assert Decimal(acme["so_far"]) * 10**6 == 165
    alerts = look(month_so_far)
    assert {(a.kind, a.tenant, a.document.get("priced_by")) for a in alerts} == {
        ("cost.budget_warning", "acme", "rate_card"),
        ("cost.budget_reached", "acme", "rate_card"),
        ("cost.engine_idle", "", "cost"),
    }, "what is charged on the tenth is what is charged on any day"
    keep(month_so_far, alerts)
    assert len(own_alerts(month_so_far, Owner("acme", 0))["data"]) == 2


# -- budgets


def test_a_budget_holds_from_its_month_until_the_next(priced):
    def put(amount, first, now=NOW):
        return set_budget(
            priced, tenant="acme", amount=amount, first=first, warn_percent=80, now=now, actor="me"
        )

    def of(name):
        with priced.read() as connection:
            return {t: b.amount_micros for t, b in read_budgets(connection, name).items()}

    assert put("100.50", "2026-10")[1]
    assert put("200", "2026-12")[1]
    assert (of("2026-09"), of("2026-10"), of("2026-11")) == ({}, *[{"acme": 100_500_000}] * 2)
    assert of("2027-03") == {"acme": 200_000_000}
    assert not put("100.50", "2026-11")[1]  # the same as before
    assert put(None, "2027-01") == (None, True)
    assert (of("2026-12"), of("2027-01")) == ({"acme": 200_000_000}, {})
    assert put(None, "2027-02") == (None, False)
    logged = [entry.action for entry in read(priced, Wanted(subject="acme"), 10)]
    assert sorted(logged) == ["cost_budget.remove", "cost_budget.set", "cost_budget.set"]


@pytest.mark.parametrize(
    ("amount", "status", "used"),
    [
        ("10000", "within", "1.5"),
        ("190", "warning", "83.1"),
        ("400", "forecast_over", "39.5"),
        ("158", "reached", "100.0"),
        ("0", "reached", None),
    ],
)
def test_how_a_month_stands_against_a_budget(month_so_far, amount, status, used):
    """158.00 are used, and about 450 expected."""
    set_budget(month_so_far, tenant="acme", amount=amount, first=None, warn_percent=80, now=NOW)
    if status == "warning":  # only if the forecast does not exceed it: on the last day
        found = budget_report(month_so_far, "2026-10", now=OCTOBER.end + DAY)["data"]
    else:
        found = budget_report(month_so_far, "2026-10", now=NOW)["data"]
    assert [(one["status"], one["used_percent"]) for one in found] == [(status, used)]


# -- anomalies and alerts


def test_a_day_at_four_times_the_habit_and_an_engine_that_idles(month_so_far):
    found = anomaly_report(month_so_far, now=NOW, bounds=Bounds())["data"]
    assert [(a["kind"], a["subject"], a["cost"]) for a in found] == [
        ("adapter", "acme/support", "48.00"),
        ("tenant", "acme", "48.00"),
        ("engine", "gpu-b", "46.00"),
    ]
    assert {a["day"] for a in found} == {"2026-10-10"}
    assert (found[0]["habit"], found[0]["ratio"]) == ("12.00", "4.00")
    assert (found[2]["since"], found[2]["ratio"]) == ("2026-10-01", "0.9583")


def look(ledger, now=NOW):
    with ledger.read() as connection:
        ahead = look_ahead(connection, "2026-10", now=now)
        return list(alerts_of(ahead, find_anomalies(connection, now=now), now=now))


def keep(ledger, alerts):
    with ledger.write() as connection:
        raise_alerts(connection, alerts)


def test_an_alert_is_raised_once_however_often_it_is_found(month_so_far):
    set_budget(month_so_far, tenant="acme", amount="158", first=None, warn_percent=80, now=NOW)
    for minute in range(3):
        keep(month_so_far, look(month_so_far, NOW + minute * 60_000_000))
    found = list_alerts(month_so_far)
    assert sorted(one["type"] for one in found) == [
        "cost.anomaly", "cost.anomaly", "cost.budget_reached", "cost.budget_warning", "cost.engine_idle",
    ]  # fmt: skip
    assert {one["raised_at"] for one in found} == {"2026-10-11T06:00:00Z"}
    assert len(list_alerts(month_so_far, tenants=("acme",))) == 4
    set_budget(month_so_far, tenant="acme", amount="150", first=None, warn_percent=80, now=NOW)
    keep(month_so_far, look(month_so_far))
    assert len(list_alerts(month_so_far)) == 7  # another budget is reached


def test_alerts_wait_for_the_webhook_until_they_are_old_news(month_so_far):
    keep(month_so_far, look(month_so_far))
    waiting = undelivered(month_so_far, now=NOW)
    assert len(waiting) == 3
    mark_delivered(month_so_far, waiting[0].id, NOW + 5)
    assert [one.id for one in undelivered(month_so_far, now=NOW)] == [one.id for one in waiting[1:]]
    assert undelivered(month_so_far, now=NOW + GIVEN_UP_AFTER + 1) == []
    [shown] = [one for one in list_alerts(month_so_far) if one["id"] == waiting[0].id]
    assert shown["delivered_at"] == "2026-10-11T06:00:00.000005Z"


@pytest.mark.parametrize("amount", ["-1", "1e40", "0.0000001"])
def test_a_wrong_amount_is_refused(priced, amount):
    with pytest.raises(BudgetError, match="amount"):
        set_budget(priced, tenant="acme", amount=amount, first=None, warn_percent=80, now=NOW)


def test_without_a_price_there_is_no_currency(ledger):
    with pytest.raises(BudgetError, match="add a price first"):
        set_budget(ledger, tenant="", amount="1", first=None, warn_percent=80, now=NOW)

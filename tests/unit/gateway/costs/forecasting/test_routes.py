"""Forecast, budgets, anomalies, alerts and events over the API; who asks is given, not looked up."""

import pytest

from gateway.costs.periods import month_of
from gateway.units import DAY, HOUR
from tests.support.ledger_rows import price
from tests.unit.gateway.costs.rolled import row, write
from tests.unit.gateway.metering.make import record

OCTOBER = month_of("2026-10")
NOW = OCTOBER.start + 10 * DAY + 6 * HOUR


@pytest.fixture
def now():
    return lambda: NOW


@pytest.fixture
async def filled(installed):
    ledger = installed.ledger
    price(ledger)
    first = OCTOBER.start // HOUR
    write(ledger, *(row(first + 24 * n, tenant=t) for n in range(10) for t in ("acme", "bolt")))
    return installed


async def test_a_forecast_and_a_tenant_s_own(ask, filled):
    whole, own = [(await ask("forecast", key=key)).json() for key in ("", "acme")]
    future = await ask("forecast", month="2027-01")
    assert (whole["month"], whole["installation"]["expected"], whole["complete"]) == (
        "2026-10",
        "124.00",
        True,
    )
    assert [r["tenant"] for r in whole["rows"]] == ["acme", "bolt"]
    assert (future.status_code, future.json()["error"]["param"]) == (400, "month")
    assert "installation" not in own
    assert [r["tenant"] for r in own["rows"]] == ["acme"]
    assert (await ask("forecast", key="acme", tenant="bolt")).json()["rows"] == []


async def test_budgets_are_set_once_and_seen_by_their_tenant(ask, filled):
    body = {"tenant": "acme", "amount": "15.50"}
    first, again, _ = [(await ask("budgets", of, put=True)).json() for of in (body, body, {"amount": "100"})]
    assert (first["changed"], again["changed"]) == (True, False)
    listed = (await ask("budgets")).json()["data"]
    assert [(b["tenant"], b["amount"], b["status"]) for b in listed] == [
        (None, "100.00", "forecast_over"), ("acme", "15.50", "reached"),
    ]  # fmt: skip
    for change in ({"tenant": "acmee"}, {"amount": "much"}, {"first_month": "soon"}, {"warn_percent": 0}):
        wrong = await ask("budgets", body | change, put=True)
        assert (wrong.status_code, [wrong.json()["error"]["param"]]) == (400, list(change))
    assert [b["tenant"] for b in (await ask("budgets", key="acme")).json()["data"]] == ["acme"]
    assert (await ask("budgets", body, put=True, key="acme")).status_code == 403


async def test_anomalies_are_for_staff(ask, filled):
    write(filled.ledger, row(OCTOBER.start // HOUR + 9 * 24 + 1, nano_gpu_hours=5 * 10**9))
    found = (await ask("anomalies")).json()["data"]
    assert [(a["kind"], a["subject"], a["ratio"]) for a in found] == [
        ("adapter", "acme/support", "3.50"), ("tenant", "acme", "6.00"),
    ]  # fmt: skip
    for wrong in ({"factor": "1"}, {"factor": "x"}, {"idle_percent": "101"}):
        assert (await ask("anomalies", **wrong)).status_code == 400
    assert (await ask("anomalies", key="acme")).status_code == 403
    assert [(await ask("alerts", key=key)).json() for key in ("", "acme")] == [{"data": []}] * 2


async def test_events_by_pages_and_their_cursor(ask, filled):
    filled.ledger.insert([record(f"r{n}", dispatched=NOW, ended=NOW + n) for n in range(3)])
    first = (await ask("events", limit=2)).json()
    rest = (await ask("events", after=first["next"])).json()
    assert (len(first["data"]), first["more"], len(rest["data"]), rest["more"]) == (2, True, 1, False)
    assert (await ask("events", after=rest["next"])).json() == {
        "data": [],
        "next": rest["next"],
        "more": False,
    }
    assert {e["source"] for e in first["data"]} == {"florin/florin"}
    for wrong in ({"after": "x"}, {"kind": "cost"}, {"kind": "cost", "month": "2026-10"}):
        assert (await ask("events", **wrong)).status_code == 400
    assert (await ask("events", key="acme")).status_code == 403

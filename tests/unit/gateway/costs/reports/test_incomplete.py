"""Figures that lack records say so: a roll-up before an answer has a deadline, and a slow machine may need longer."""

import pytest

from gateway.costs.periods import month_of
from gateway.costs.reports import report
from gateway.costs.reports.report import Question, cost_report
from gateway.costs.rollups.rollup import roll
from gateway.operations import ledger_refresh
from gateway.tenants.directory import Role
from gateway.units import HOUR
from tests.support.ledger_rows import price
from tests.unit.gateway.metering.make import record

OCTOBER = month_of("2026-10")
REPORTS = [
    *("forecast", "anomalies", "budgets", "margin", "energy", "adapters", "reconciliation"),
    *("compare?reference=H100", "commitments/report", "statements/acme?format=json"),
]
HOURS = 3 * len(REPORTS)


@pytest.fixture
def now():
    return lambda: OCTOBER.end - 1


@pytest.fixture
async def slow(installed, monkeypatch):
    """Each answer rolls up one more hour."""
    monkeypatch.setattr(ledger_refresh, "ROLL_SECONDS", 0.0)
    price(installed.ledger)
    hours = (OCTOBER.start + n * HOUR for n in range(HOURS))
    installed.ledger.insert([record(f"r{hour}", dispatched=hour, ended=hour + HOUR // 2) for hour in hours])
    return installed


def codes(answer):
    return [reason["code"] for reason in answer.json()["reasons"]]


def in_october(path):
    return f"/finance/v1/{path}{'&' if '?' in path else '?'}month=2026-10"


async def test_every_report_says_whether_it_is_complete(client_for, slow):
    async with client_for() as client:
        for path in REPORTS:
            early = await client.get(in_october(path))
            assert (early.status_code, early.json().get("complete")) == (200, False), (path, early.text)
            assert "hours_stale" in codes(early), path
        page = await client.get(in_october("statements/acme"))
        assert "Some engine-hours are not summed up yet." in page.text
        assert "Total so far" in page.text
        assert ",incomplete," in (await client.get(in_october("statements/acme?format=csv"))).text
        export = await client.get(in_october("export"))
        assert export.headers["x-florin-complete"] == "false"
        assert export.headers["x-florin-incomplete"] == "hours_stale"
        roll(slow.ledger, OCTOBER.end)
        for path in REPORTS:
            assert (await client.get(in_october(path))).json()["complete"] is True, path
        page = await client.get(in_october("statements/acme"))
        assert "Incomplete" not in page.text
        assert "Total so far" not in page.text
        assert (await client.get(in_october("export"))).headers["x-florin-complete"] == "true"


OTHERS = ("costs", "usage", "provisioned-time/hours", "usage/req-1", "usage/req-1/cost")


@pytest.mark.both_databases
async def test_every_report_says_that_records_are_in_quarantine(client_for, installed):
    """Of a customer's own, only if they are its records."""
    price(installed.ledger)
    first = OCTOBER.end - 5 * HOUR
    for tokens in (1, 2):
        attempt = record("req-1", dispatched=first, ended=first + HOUR // 2, completion_tokens=tokens)
        installed.ledger.insert([attempt])
    roll(installed.ledger, OCTOBER.end)
    for role, tenant, expected in (
        (Role.FINANCE, "", True),
        (Role.TENANT, "acme", True),
        (Role.TENANT, "bolt", False),
    ):
        async with client_for(role, tenant) as client:
            for path in (*REPORTS, *OTHERS):
                answer = await client.get(in_october(path.replace("acme", tenant or "acme")))
                if role is Role.TENANT and answer.status_code in {403, 404}:
                    continue
                assert ("records_quarantined" in codes(answer)) is expected, (path, tenant, answer.text)


def test_the_cost_report_too(slow, monkeypatch):
    monkeypatch.setattr(report, "ROLL_SECONDS", 0.0)
    early = cost_report(slow.ledger, Question(OCTOBER), now=OCTOBER.end)
    assert (early["complete"], early["totals"]["requests"]) == (False, 1)
    monkeypatch.undo()
    whole = cost_report(slow.ledger, Question(OCTOBER), now=OCTOBER.end)
    assert (whole["complete"], whole["totals"]["requests"]) == (True, HOURS)

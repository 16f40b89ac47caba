"""A new customer with the name of a removed one: its keys find nothing of what that one used."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gateway.costs.closing.closing import close
from gateway.costs.forecasting.alerts import alerts_of, raise_alerts
from gateway.costs.forecasting.budgets import set_budget
from gateway.costs.forecasting.look_ahead import look_ahead
from gateway.costs.periods import iso, month_of
from gateway.costs.rollups.rollup import roll
from gateway.tenants.directory import Role, Tenant
from gateway.units import DAY, HOUR
from tests.support.ledger_rows import price
from tests.unit.gateway.costs.reports.test_customers import asked
from tests.unit.gateway.costs.selling.sold import up
from tests.unit.gateway.metering.make import record

SEPTEMBER, OCTOBER, NOVEMBER = (month_of(f"2026-{n}").start for n in ("09", "10", "11"))
MINUTE = HOUR // 60
CREATED = OCTOBER + 10 * DAY + 10 * HOUR + 20 * MINUTE
NOW = NOVEMBER + 20 * DAY
FINANCE = "/finance/v1"


def used(name: str, whose: str, start: int, minutes: int = 5, **changes):
    return record(
        name, tenant="acme", adapter=f"acme/{whose}-chat", key_id=f"{whose}-key", engine="gpu-a", gpu_type="H100",
        gpu_count=1, dispatched=start, first_token=start + 1, ended=start + minutes * MINUTE,
        end_user=f"{whose}-ann", tag=f"{whose}-tag", cost_centre=f"{whose}-sales", **changes,
    )  # fmt: skip


THEIRS = [
    used("theirs-1", "old", SEPTEMBER + DAY),
    used("theirs-2", "old", OCTOBER + 2 * DAY),
    used("theirs-3", "old", CREATED - 15 * MINUTE),
    used("theirs-4", "old", CREATED - 2 * MINUTE, minutes=52),  # it ends after eleven
]
OURS = [
    used("ours-1", "new", CREATED + 10 * MINUTE),
    used("ours-2", "new", CREATED + 70 * MINUTE),
    used("ours-3", "new", CREATED + 140 * MINUTE),
    used("ours-4", "new", NOVEMBER + DAY),
]


@pytest.fixture
def now():
    return lambda: NOW


@pytest.fixture
def reused(installed):
    installed.directory = SimpleNamespace(
        tenants={"acme": Tenant("acme", base_access=True, created=CREATED)}, keys={}
    )
    price(installed.ledger)
    return installed


@pytest.fixture
def both(reused):
    """September and October are closed; then another record of the old one arrives."""
    ledger = reused.ledger
    ledger.insert([*THEIRS, *OURS])
    set_budget(ledger, tenant="acme", amount="0.01", first="2026-09", warn_percent=1, now=CREATED - DAY)
    roll(ledger, NOW)
    with ledger.write() as connection:
        look = look_ahead(connection, "2026-10", now=CREATED - HOUR)
        raise_alerts(connection, alerts_of(look, [], now=CREATED - HOUR))
        raise_alerts(connection, alerts_of(look, [], now=CREATED + HOUR))
    for of in ("2026-09", "2026-10"):
        close(ledger, of, now=NOW, by="test", policy="proportional")
    return reused


async def test_a_new_customers_key_finds_nothing_of_an_earlier_one(client_for, both):
    async with client_for(Role.TENANT, "acme") as client:
        for path, params in asked("acme"):
            answer = await client.get(path, params=params)
            assert "old-" not in answer.text, (path, params, answer.text)
            assert "theirs" not in answer.text, (path, params)
        for by in ("key", "tag", "end_user", "cost_centre", "key,end_user"):
            for when in (
                {"month": "2026-10"},
                {"from": "2026-10-01", "to": "2026-11-03", "timezone": "+05:30"},
            ):
                answer = await client.get(f"{FINANCE}/costs", params={"by": by, **when})
                assert answer.status_code == 200, answer.text
                assert "old-" not in answer.text, (by, when)
                assert answer.json()["totals"]["requests"] == (1 if "month" in when else 2), (by, when)
        for attempt in THEIRS:
            for part in ("", "/cost"):
                assert (await client.get(f"{FINANCE}/usage/{attempt.request_id}{part}")).status_code == 404
        assert (await client.get(f"{FINANCE}/usage/ours-1/cost")).status_code == 200
        whole = (await client.get(f"{FINANCE}/usage", params={"month": "2026-10"})).json()["data"]
        months = (await client.get(f"{FINANCE}/periods")).json()["data"]
        shared = [
            (await client.get(f"{FINANCE}/{path}")).status_code
            for path in ("statements/acme?month=2026-10", "export?month=2026-10", "periods/2026-10/proof")
        ]
        own = (await client.get(f"{FINANCE}/statements/acme?month=2026-11&format=json")).json()
        budgets, alerts = [(await client.get(f"{FINANCE}/{name}")).json() for name in ("budgets", "alerts")]
        [forecast] = (await client.get(f"{FINANCE}/forecast?month=2026-10")).json()["rows"]
        [october] = (await client.get(f"{FINANCE}/costs?month=2026-10&by=tenant")).json()["rows"]
    assert [one["request_id"] for one in whole] == ["ours-1", "ours-2", "ours-3"]
    assert [one["month"] for one in months] == ["2026-10", "2026-11"]
    assert shared == [404, 404, 404]
    assert sum(row["requests"] for row in own["usage"]) == 1
    assert (budgets["data"], alerts["data"]) == ([], [])
    assert forecast["so_far"] == october["cost"]


async def test_finance_sees_both_and_which_is_which(ask, both):
    october, before, november = [
        (await ask("costs", **when)).json()
        for when in (
            {"month": "2026-10", "by": "tenant,key"}, {"from": "2026-10-01", "to": "2026-10-10", "by": "key"},
            {"month": "2026-11"},
        )
    ]  # fmt: skip
    [statement] = (await ask("periods/2026-10")).json()["statements"]
    assert {row["key"] for row in october["rows"]} == {"old-key", "new-key"}
    assert october["names_reused"] == {"acme": iso(CREATED)} == {"acme": statement["name_reused_at"]}
    assert (before["names_reused"], november["names_reused"]) == ({"acme": iso(CREATED)}, {})


async def test_late_usage_of_the_earlier_one_stays_its_own(ask, both):
    both.ledger.insert([used("theirs-5", "old", OCTOBER + 3 * DAY)])
    roll(both.ledger, NOW)
    statement = await ask("statements/acme", key="acme", month="2026-11")
    costs = (await ask("costs", key="acme", month="2026-11", by="adapter")).json()
    assert statement.status_code == 404
    assert "was added later, or within that month" in statement.json()["error"]["message"]
    assert [row["adapter"] for row in costs["rows"]] == ["acme/new-chat"]
    assert costs["corrections"]["rows"] == []


async def test_a_name_that_was_nobodys_shows_everything(ask, reused):
    reused.ledger.insert(OURS)
    up(reused.ledger, OCTOBER)
    roll(reused.ledger, NOW)
    close(reused.ledger, "2026-10", now=NOW, by="test", policy="proportional")
    costs = (await ask("costs", key="acme", month="2026-10")).json()
    statement = (await ask("statements/acme", key="acme", month="2026-10", format="json")).json()
    assert (costs["basis"], costs["totals"]["requests"]) == ("posted", 3)
    assert sum(row["requests"] for row in statement["usage"]) == 3
    assert (await ask("periods/2026-10/proof", key="acme")).status_code == 200

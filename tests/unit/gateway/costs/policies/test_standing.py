"""Standing policies: what holds for which month, and what open months show before they are closed."""

from __future__ import annotations

import json

import pytest
from sqlalchemy import select

from gateway.costs.allocation import NONE, AllocationPolicy
from gateway.costs.closing.checks import GRACE
from gateway.costs.closing.closing import ClosingError, close
from gateway.costs.closing.preview import preview
from gateway.costs.periods import PeriodError
from gateway.costs.policies.standing import (
    FIRST_MONTH,
    StandingPolicyError,
    history,
    set_policy,
    standing_policy,
)
from gateway.costs.policies.terms import policies_at
from gateway.costs.rollups.rollup import roll
from gateway.costs.verification.verify import verify
from gateway.metering.ledger.schema import audit_log, period_tenants
from tests.unit.gateway.costs.month import DECEMBER, fill

NOW = DECEMBER + GRACE
PROPORTIONAL, EVEN = AllocationPolicy("proportional"), AllocationPolicy("even")


def put(ledger, policy=NONE, **changes):
    return set_policy(ledger, policy, **({"by": "k1", "reason": "", "now": NOW} | changes))


def held(ledger, of):
    with ledger.read() as connection:
        return standing_policy(connection, of)


def test_the_latest_row_up_to_a_month_holds(ledger):
    assert put(ledger, PROPORTIONAL) == (FIRST_MONTH, True)
    assert put(ledger, EVEN, valid_from="2026-11") == ("2026-11", True)
    assert put(ledger, AllocationPolicy("fixed", {"acme": 1}), valid_from="2026-10") == ("2026-10", True)
    assert [held(ledger, of).name for of in ("2026-09", "2026-10", "2026-11")] == [
        "proportional",
        "fixed",
        "even",
    ]
    assert put(ledger, NONE, valid_from="2026-11") == ("2026-11", True)  # the last recorded of one month
    assert held(ledger, "2026-12") == NONE
    with ledger.read() as connection:
        assert [row.policy for row in history(connection)] == ["proportional", "even", "fixed", "none"]


def test_setting_it_again_records_nothing(ledger):
    fixed = AllocationPolicy("fixed", {"acme": 2, "bolt": 1})
    for given, changed in ((EVEN, True), (EVEN, False), (fixed, True), (fixed, False)):
        assert put(ledger, given, actor="key:k1")[1] is changed
    assert put(ledger, tenant="acme", default=True)[1] is False
    with ledger.read() as connection:
        assert len(history(connection)) == 2
        notes = connection.execute(select(audit_log.c.subject, audit_log.c.details)).all()
    assert [subject for subject, _ in notes] == ["installation"] * 2
    assert json.loads(notes[1].details)["shares"] == {"acme": 2, "bolt": 1}


@pytest.mark.parametrize(
    ("policy", "changes", "param"),
    [
        (EVEN, {"valid_from": "2026-10"}, "from"),
        (AllocationPolicy("fixed", {"acme": 1}), {"tenant": "acme"}, "policy"),
        (NONE, {"default": True}, "tenant"),
    ],
)
def test_what_cannot_be_set(ledger, policy, changes, param):
    fill(ledger)
    close(ledger, "2026-10", now=NOW, by="key")
    with pytest.raises(StandingPolicyError) as caught:
        put(ledger, policy, **changes)
    assert caught.value.param == param
    with pytest.raises(PeriodError):
        put(ledger, EVEN, valid_from="soon")
    assert put(ledger, EVEN) == ("2026-11", True)  # the first that is open


def stored(ledger, of):
    with ledger.read() as connection:
        query = select(period_tenants.c.document).where(period_tenants.c.month == of)
        return {one["tenant"]: one for one in map(json.loads, connection.execute(query).scalars())}


def test_a_preview_is_what_closing_bills_to_the_cent(ledger):
    """A preliminary statement said 780.74, the final one 1,606.22."""
    fill(ledger)
    put(ledger, PROPORTIONAL)
    put(ledger, NONE, tenant="corgi")
    roll(ledger, NOW)
    for of in ("2026-10", "2026-11"):
        with ledger.read() as connection:
            before = preview(connection, of, now=NOW)
        assert (before["policy"], before["own"], before["standing"]) == (
            "proportional",
            {"corgi": "none"},
            True,
        )
        assert before["obstacles"] == []
        row = close(ledger, of, now=NOW, by="key")
        assert row["policy"] == "proportional"
        found = stored(ledger, of)
        assert {one["tenant"]: one["amount_cents"] for one in before["statements"]} == {
            tenant: one["amount_cents"] for tenant, one in found.items()
        }
        for one in before["statements"]:
            assert one.items() <= found[one["tenant"]].items()
        assert before["totals"] == json.loads(row["document"])["summary"]["totals"]
        assert found["corgi"]["allocated_nano_gpu_hours"] == 0 < found["acme"]["allocated_nano_gpu_hours"]
        with ledger.read() as connection:
            after = preview(connection, of, now=NOW)
        assert after["totals"] == before["totals"]
    assert all(check.ok for period in verify(ledger) for check in period.checks)


def test_what_is_in_the_way_of_a_closing_is_said(ledger):
    fill(ledger, prices=False)
    roll(ledger, NOW)
    with ledger.read() as connection:
        found = preview(connection, "2026-11", now=DECEMBER - 1)
    assert len(found["obstacles"]) == 3
    over, order, unpriced = found["obstacles"]
    assert "is not over yet" in over
    assert "2026-10 has usage and is not closed" in order
    assert "No price for H100" in unpriced
    assert found["missing_prices"] == ["H100 on_demand", "L40 on_demand"]
    assert found["totals"]["amount_cents"] == 0


def test_a_policy_given_at_the_closing_holds_for_all_tenants(ledger):
    fill(ledger)
    put(ledger, EVEN)
    put(ledger, NONE, tenant="corgi")
    close(ledger, "2026-10", now=NOW, by="key", policy="proportional")
    assert stored(ledger, "2026-10")["corgi"]["allocated_nano_gpu_hours"] > 0
    close(ledger, "2026-11", now=NOW, by="key")
    with pytest.raises(ClosingError, match="with tenants' own policies, which can no longer change"):
        close(ledger, "2026-11", now=NOW, by="key", policy="even")
    assert close(ledger, "2026-11", now=NOW, by="key")["already"]
    shown = policies_at(ledger, "2026-10", NOW)
    assert (shown["policy"], shown["own"], shown["frozen"]) == ("proportional", {}, True)
    assert policies_at(ledger, "2026-11", NOW, "corgi") == {
        "month": "2026-11",
        "policy": "none",
        "frozen": True,
    }
    assert policies_at(ledger, None, NOW)["month"] == "2026-12"

"""Who pays a card's minimum for a month, and that no month with something to pay is skipped."""

from __future__ import annotations

import json

import pytest
from sqlalchemy import select

from gateway.costs.closing.closing import ClosingError, close
from gateway.costs.manual_lines.operations import line_of
from gateway.costs.manual_lines.schemas import NewManualLine
from gateway.costs.manual_lines.store import request_line
from gateway.costs.periods import month_of
from gateway.costs.rollups.rollup import roll
from gateway.costs.selling.assignments import DEFAULT, Assignment
from gateway.costs.selling.card_store import add_card, assign
from gateway.metering.ledger.schema import period_tenants
from gateway.units import HOUR
from tests.support.ledger_rows import price
from tests.unit.gateway.costs.selling.cards import card
from tests.unit.gateway.costs.selling.sold import attempt, up

MINIMUM = 25_000_000


def months(*, minimum=MINIMUM):
    """bolt has usage in October and December; by default, everybody pays by a card with a minimum."""

    def fill(ledger):
        price(ledger)
        add_card(ledger, card(minimum_micros=minimum), default_start=False)
        assign(ledger, Assignment(DEFAULT, "standard", "2026-10", 1))
        for month in ("2026-10", "2026-12"):
            ledger.insert([attempt(month, "bolt", month_of(month).start)])
            up(ledger, month_of(month).start)

    return fill


def closed(ledger, month):
    close(ledger, month, now=month_of(month).end + 2 * HOUR, by="test")
    with ledger.read() as connection:
        query = select(period_tenants.c.tenant, period_tenants.c.document)
        rows = connection.execute(query.where(period_tenants.c.month == month)).all()
    statements = {tenant: json.loads(document) for tenant, document in rows}
    return {tenant: (s.get("charges") or s)["amount_cents"] for tenant, s in statements.items()}


def test_not_before_its_own_assignment_begins(ledger_with):
    """Until then it has the default card, which charges its minimum in months with usage."""
    ledger = ledger_with(months())
    assign(ledger, Assignment("acme", "standard", "2026-11", 2))
    assert closed(ledger, "2026-10") == {"bolt": 2500}
    assert closed(ledger, "2026-11") == {"acme": 2500}


@pytest.mark.parametrize("stated", [False, True])
def test_usage_that_comes_late_pays_it_once(ledger_with, stated):
    ledger = ledger_with(months())
    if stated:
        ledger.insert([attempt("in time", "acme", month_of("2026-10").start)])
    assert closed(ledger, "2026-10") == {"bolt": 2500, **({"acme": 2500} if stated else {})}
    ledger.insert([attempt("late", "acme", month_of("2026-10").start + HOUR)])
    roll(ledger, month_of("2026-12").end)
    assert closed(ledger, "2026-11").get("acme", 0) == (0 if stated else 2500)
    ledger.insert([attempt("later", "acme", month_of("2026-10").start + HOUR)])
    roll(ledger, month_of("2026-12").end)
    assert closed(ledger, "2026-12") == {"bolt": 2500, "acme": 0}, "nothing more of October"


@pytest.mark.parametrize("owed", ["minimum", "fee"])
def test_a_month_that_somebody_pays_for_is_not_skipped(ledger_with, owed):
    ledger = ledger_with(months())
    if owed == "minimum":
        assign(ledger, Assignment("acme", "standard", "2026-11", 2))
    else:
        new = NewManualLine(kind="fee", tenant="acme", amount="9", reason="Support", begins="2026-11-03")
        request_line(ledger, line_of(new, month_of("2026-10").end, "test"), approved=True, actor="test")
    closed(ledger, "2026-10")
    with pytest.raises(ClosingError, match="2026-11 has fees, minimums or resident adapters"):
        closed(ledger, "2026-12")
    assert "acme" in closed(ledger, "2026-11")
    assert "bolt" in closed(ledger, "2026-12")


def test_a_month_without_anything_is_skipped_as_before(ledger_with):
    ledger = ledger_with(months())
    closed(ledger, "2026-10")
    assert closed(ledger, "2026-12") == {"bolt": 2500}

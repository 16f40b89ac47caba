"""Prepaid credits: what months draw of grants, and that closed months keep it."""

import pytest

from gateway.costs.closing.closing import ClosingError, close
from gateway.costs.closing.preview import settlement_now
from gateway.costs.credits.grants import Grant, draw, holdings_in
from gateway.costs.credits.operations import read_balance
from gateway.costs.credits.store import add_grant, end_credits, end_grant, list_grants
from gateway.costs.manual_lines.store import request_line
from gateway.costs.reports.closed_months import one, overview, proof_of
from gateway.costs.rollups.rollup import roll
from gateway.costs.selling.cards import RateCardConflictError, RateCardError
from gateway.costs.statement.charge_rows import month_charges
from gateway.costs.statement.page import statement_csv, statement_page
from gateway.costs.verification.verify import verify
from gateway.units import DAY
from tests.support.ledger_rows import exchange_rate, price
from tests.unit.gateway.costs.manual_lines.test_manual_lines import line
from tests.unit.gateway.costs.selling.sold import NOVEMBER, NOW, OCTOBER, close_october, fill, statement

AT = NOVEMBER + 4 * DAY
PARTS = ("opening", "granted", "drawn", "expired", "closing")


def grant(cents=1000, begins="2026-10", ends="", **more):
    fields = {
        "id": 0, "tenant": "acme", "cents": cents, "begins": begins, "ends": ends, "priority": 50,
        "reason": "Payment 1", "reference": "", "granted_at": AT, "granted_by": "key:a",
    }  # fmt: skip  # one name a line says no more
    return Grant(**fields | more)


def fill_ledger(ledger):
    fill(ledger)
    roll(ledger, NOW)


@pytest.fixture
def ledger(ledger_with):
    return ledger_with(fill_ledger)


def add(ledger, *args, **more):
    return add_grant(ledger, grant(*args, **more), actor="key:a")[0]


def parts(document):
    return tuple(document["credits"][f"{name}_cents"] for name in PARTS)


@pytest.mark.parametrize(
    ("grants", "due", "drawn"),
    [
        ([grant(id=1)], 400, {1: 400}),
        ([grant(id=1)], 1000, {1: 1000}),
        ([grant(id=1)], 1001, {1: 1000}),
        ([grant(id=1)], -5, {}),
        ([grant(id=1), grant(id=2)], 1200, {1: 1000, 2: 200}),  # the oldest first
        ([grant(id=1), grant(id=2, ends="2026-12"), grant(id=3, ends="2026-10")], 1500, {3: 1000, 2: 500}),
        ([grant(id=1, ends="2026-10"), grant(id=2, priority=1)], 1500, {2: 1000, 1: 500}),
        ([grant(id=1, begins="2026-11")], 100, {}),
        ([grant(id=1, begins="2026-01", ends="2026-09")], 100, {}),
        ([grant(id=1, drawn=700)], 400, {1: 300}),
    ],
)
def test_what_a_month_draws(grants, due, drawn):
    of_month = draw(holdings_in("2026-10", grants).get("acme", ()), "2026-10", due)
    assert {part.grant: part.cents for part in of_month.draws} == drawn


@pytest.mark.parametrize("tenant", ["acme", "bolt", "newcomer"])
def test_credits_are_on_the_statement_and_closed_months_keep_them(ledger, tenant):
    """acme has a rate card, bolt pays the cost, and the newcomer has used nothing."""
    before = statement(ledger, tenant=tenant)
    assert "credits" not in before
    price_cents = before["amount_cents"]
    add(ledger, price_cents + 30, ends="2026-11", tenant=tenant)
    add(ledger, 70, ends="2026-10", tenant=tenant)
    after = statement(ledger, tenant=tenant)
    expired = max(70 - price_cents, 0)
    closing = 100 - expired
    assert parts(after) == (0, price_cents + 100, price_cents, expired, closing)
    assert after["amount_cents"] == after["total_cents"] == 0
    for name in ("charges", "usage", "unused_time_cents", "corrections"):
        assert after[name] == before[name]
    with ledger.read() as connection:
        rows = list(month_charges(connection, "2026-10", (tenant,)))
        margin = settlement_now(connection, "2026-10").settlement.statements[tenant].price_cents
    assert sum(row["amount"].units for row in rows) == 0
    assert margin == price_cents, "what is paid in advance is paid"
    close(ledger, "2026-10", now=NOW, by="test")
    add(ledger, 5, begins="2026-11", tenant=tenant)
    final = statement(ledger, tenant=tenant)
    assert (final["state"], final["credits"]) == ("final", after["credits"])
    assert all(check.ok is not False for check in verify(ledger, "2026-10")[0].checks)
    [sums] = [row for row in one(ledger, "2026-10", NOW)["statements"] if row["tenant"] == tenant]
    assert sums["charged_cents"] == 0
    assert proof_of(ledger, "2026-10", tenant)["statement"]["amount_cents"] == 0
    page = statement_page(ledger, tenant, "2026-10", issuer="N", now=NOW, known=True)
    assert "Prepaid credits" in page
    if price_cents:
        table = statement_csv(ledger, tenant, "2026-10", issuer="N", now=NOW, known=True).decode()
        assert "prepaid_credit,Payment 1," in table
    assert parts(statement(ledger, tenant, "2026-11"))[:2] == (closing, 5)


@pytest.mark.both_databases
def test_an_open_month_begins_with_what_the_open_month_before_leaves(ledger):
    october = statement(ledger)["amount_cents"]
    add(ledger, october + 1)
    assert parts(statement(ledger, month="2026-11"))[0] == 1
    balance = read_balance(ledger, "acme", "2026-11")
    assert (balance.opening, balance.granted, balance.closing) == ("0.01", "0.00", "0.00")
    assert read_balance(ledger, "bolt", "2026-11").closing == "0.00"
    close_october(ledger)
    assert parts(statement(ledger, month="2026-11"))[0] == 1
    assert [g.drawn for g in list_grants(ledger, "acme")] == [october]


def test_credits_pay_for_fees_too(ledger):
    request_line(ledger, line("charge", 500, tenant="newcomer"), approved=True, actor="key:a")
    add(ledger, 300, begins="2026-10", tenant="newcomer")
    assert statement(ledger, "newcomer", "2026-10")["amount_cents"] == 200


def test_in_another_currency_what_is_paid_in_full_stays_so(ledger):
    exchange_rate(ledger, "0.91", OCTOBER)
    price_cents = statement(ledger)["amount_cents"]
    add(ledger, price_cents + 7)
    euros = statement(ledger, currency="EUR")
    opening, granted, drawn, expired, closing = parts(euros)
    assert (euros["amount_cents"], opening + granted - drawn - expired) == (0, closing)
    assert sum(part["cents"] for part in euros["credits"]["draws"]) == drawn


def test_a_reference_is_granted_once(ledger):
    first, new = add_grant(ledger, grant(reference="pay_1", begins=""), actor="key:a")
    again, newer = add_grant(ledger, grant(reference="pay_1", begins="", granted_at=NOW), actor="key:b")
    assert (new, newer, again) == (True, False, first)
    with pytest.raises(RateCardConflictError, match="other terms"):
        add_grant(ledger, grant(1001, reference="pay_1"), actor="key:a")
    assert len(list_grants(ledger, None)) == 1


def test_closed_months_get_no_grants_and_months_with_credits_are_closed_in_order(ledger):
    close_october(ledger)
    with pytest.raises(RateCardError, match="closed"):
        add(ledger, begins="2026-10")
    with pytest.raises(RateCardError, match="before it begins"):
        add(ledger, begins="2026-12", ends="2026-11")
    add(ledger, begins="2026-12", tenant="newcomer")
    assert "2026-12" in [month["month"] for month in overview(ledger, NOW)]
    close(ledger, "2026-11", now=NOW, by="test")
    with pytest.raises(ClosingError, match="credits begin or end in 2026-12"):
        close(ledger, "2027-01", now=NOW + 90 * DAY, by="test")


def test_a_grant_ends_with_a_month_and_a_removed_tenant_has_none_left(ledger):
    first, second = add(ledger, 10**6), add(ledger, 5, begins="2026-12")
    other = add(ledger, tenant="bolt")
    assert end_grant(ledger, first.id, "2026-12", now=AT, actor="key:a").ends == "2026-12"
    end_credits(ledger, "acme", now=AT, actor="key:a")
    ends = {g.id: g.ends for g in list_grants(ledger, None)}
    assert ends == {first.id: "2026-11", second.id: "2026-12", other.id: ""}
    close_october(ledger)
    with pytest.raises(RateCardError, match="2026-11"):
        end_grant(ledger, other.id, "2026-10", now=NOW, actor="key:a")


def test_months_without_credits_have_no_such_key(ledger):
    close_october(ledger)
    with ledger.read() as connection:
        document = settlement_now(connection, "2026-10").settlement.statements["acme"].document()
    assert "credits" not in document


def test_a_currency_without_decimals_has_none_here(ledger_with):
    def yen(ledger):
        price(ledger, "H100", "300", currency="JPY")

    ledger = ledger_with(yen)
    with pytest.raises(RateCardError, match="no decimals"):
        add(ledger, 150)
    assert add(ledger, 100).id

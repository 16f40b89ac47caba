"""Fees, charges, credits and refunds: what they add to a month, and that closed months keep them."""

from dataclasses import replace

import pytest

from gateway.costs.closing.closing import ClosingError, close
from gateway.costs.closing.preview import settlement_now
from gateway.costs.manual_lines.lines import month_lines
from gateway.costs.manual_lines.store import (
    SecondPersonError,
    approve_line,
    end_fees,
    list_manual_lines,
    request_line,
    withdraw_line,
)
from gateway.costs.proofs.proof import verify_proof
from gateway.costs.reports.closed_months import one, overview, proof_of
from gateway.costs.rollups.rollup import roll
from gateway.costs.selling.cards import RateCardConflictError, RateCardError
from gateway.costs.statement.final_charges import final_charges
from gateway.costs.statement.page import statement_csv, statement_page
from gateway.costs.verification.verify import verify
from gateway.units import DAY
from tests.support.ledger_rows import exchange_rate
from tests.unit.gateway.costs.manual_lines.lines import AT, line
from tests.unit.gateway.costs.selling.sold import END, NOW, OCTOBER, close_october, fill, statement


def fee(begins="2026-10-15", **more):
    return line("fee", 3100, **{"begins": begins, "reason": "Support", "approved_at": 1, "id": 1, **more})


def fill_ledger(ledger):
    fill(ledger)
    roll(ledger, NOW)


@pytest.fixture
def ledger(ledger_with):
    return ledger_with(fill_ledger)


def add(ledger, new, *, approved=True, actor="key:a"):
    return request_line(ledger, new, approved=approved, actor=actor)[0]


@pytest.mark.parametrize(
    ("lines", "october", "november"),
    [
        ([fee()], 3100, 3100),
        ([fee(prorated=True)], 1700, 3100),  # 17 of 31 days
        ([fee(prorated=True, ends="2026-10-15")], 100, None),
        ([fee("2026-10-31", prorated=True, ends="2026-11-10")], 100, 1033),  # a third of 31.00, half up
        ([fee("2026-11-01")], None, 3100),
        ([fee(), line("end", 0, fee=1, ends="2026-10-31", approved_at=1)], 3100, None),
        ([fee(), line("end", 0, fee=1, ends="2026-10-31")], 3100, 3100),  # nobody approved the end
        ([fee(approved_at=None)], None, None),
        ([line(month="2026-10", approved_at=1)], -4000, None),
        ([line("charge", month="2026-11", approved_at=1)], None, 4000),
    ],
)
def test_what_lines_add_to_a_month(lines, october, november):
    for month, cents in (("2026-10", october), ("2026-11", november)):
        added = month_lines(lines, month).get("acme", ())
        assert [line.cents for line in added] == ([] if cents is None else [cents])


@pytest.mark.parametrize("tenant", ["acme", "bolt", "newcomer"])
def test_lines_are_on_the_statement_and_closed_months_keep_them(ledger, tenant):
    """acme has a rate card, bolt pays the cost, and the newcomer has used nothing."""
    before = statement(ledger, tenant, "2026-10")
    add(ledger, line(tenant=tenant, cents=1))
    add(ledger, line("fee", 3100, tenant=tenant, begins="2026-10-15", prorated=True, reason="Support"))
    after = statement(ledger, tenant, "2026-10")
    assert after["amount_cents"] == before["amount_cents"] - 1 + 1700
    assert [(row["kind"], row["amount_cents"]) for row in after["manual_lines"]] == [
        ("credit", -1),
        ("fee", 1700),
    ]
    for name in ("charges", "usage", "unused_time_cents", "corrections"):
        assert after[name] == before[name]
    close_october(ledger)
    add(ledger, line("charge", tenant=tenant, reason="Too late for October"))
    end_fees(ledger, tenant, now=AT, actor="key:a")
    final = statement(ledger, tenant, "2026-10")
    assert (final["state"], final["manual_lines"]) == ("final", after["manual_lines"])
    assert all(check.ok is not False for check in verify(ledger, "2026-10")[0].checks)
    [sums] = [row for row in one(ledger, "2026-10", NOW)["statements"] if row["tenant"] == tenant]
    assert sums["charged_cents"] == final["amount_cents"]
    page = statement_page(ledger, tenant, "2026-10", issuer="N", now=NOW, known=True)
    assert "Fee: Support, 17 of 31 days" in page
    table = statement_csv(ledger, tenant, "2026-10", issuer="N", now=NOW, known=True).decode()
    assert "credit,Outage," in table
    proof = proof_of(ledger, "2026-10", tenant)
    records = [] if tenant == "newcomer" else None
    assert proof["statement"]["amount_cents"] == final["amount_cents"]
    assert all(check.ok is not False for check in verify_proof(proof, records, proof["seal"]))


@pytest.mark.parametrize("tenant", ["acme", "bolt"])
def test_in_another_currency_each_line_is_rounded_by_itself(ledger, tenant):
    exchange_rate(ledger, "0.91", OCTOBER)
    plain = statement(ledger, tenant, "2026-10", currency="EUR")
    add(ledger, line(tenant=tenant, cents=5))
    euros = statement(ledger, tenant, "2026-10", currency="EUR")
    assert [row["amount_cents"] for row in euros["manual_lines"]] == [-5]  # 4.55, half up from below
    assert euros["amount_cents"] == plain["amount_cents"] - 5


def test_a_single_line_is_on_the_next_statement_and_its_month_is_not_skipped(ledger):
    assert add(ledger, line()).month == "2026-10", "it has usage and is open"
    close_october(ledger)
    assert add(ledger, line(reason="Another")).month == "2026-11"
    close(ledger, "2026-11", now=NOW, by="test")
    alone = add(ledger, line(reason="A month without usage", requested_at=END + DAY))
    assert alone.month == "2026-12"
    later = END + 90 * DAY
    assert overview(ledger, later)[-1]["month"] == "2026-12"
    with pytest.raises(ClosingError, match="2026-12 has manual lines"):
        close(ledger, "2027-01", now=later, by="test")
    close(ledger, "2026-12", now=later, by="test")
    assert statement(ledger, "acme", "2026-12")["amount_cents"] == -4000


def test_a_second_person_approves_and_only_then_it_counts(ledger):
    pending = add(ledger, line(), approved=False)
    with pytest.raises(SecondPersonError):
        approve_line(ledger, pending.id, now=AT, actor="key:a")
    assert statement(ledger, "acme", "2026-10")["manual_lines"] == []
    close_october(ledger)
    approved = approve_line(ledger, pending.id, now=AT, actor="key:b")
    assert (approved.month, approved.approved_by) == ("2026-11", "key:b"), "the next statement by now"
    assert approve_line(ledger, pending.id, now=AT + 1, actor="key:c") == approved
    with pytest.raises(RateCardConflictError, match="add its opposite"):
        withdraw_line(ledger, pending.id, now=AT, actor="key:a")


def test_fees_end_with_the_tenant_or_the_adapter(ledger):
    for adapter in ("", "acme/chat", "acme/other"):
        add(ledger, line("fee", begins="2026-10-15", adapter=adapter, reason="Fee", prorated=True))
    end_fees(ledger, "acme", now=AT, actor="key:a", adapter="acme/chat")
    end_fees(ledger, "acme", now=AT, actor="key:a", adapter="acme/chat")

    def shares(month):
        with ledger.read() as connection:
            statements = settlement_now(connection, month).settlement.statements
        lines = statements["acme"].manual if "acme" in statements else ()
        return [(charge.adapter, charge.days) for charge in lines]

    assert shares("2026-11") == [("", 0), ("acme/chat", 5), ("acme/other", 0)]
    assert final_charges(ledger, "acme", AT)["months"] == ["2026-10", "2026-11"]
    end_fees(ledger, "acme", now=AT, actor="key:a")
    assert shares("2026-12") == []
    assert len(list_manual_lines(ledger, "acme")) == 6


@pytest.mark.parametrize(
    ("new", "error"),
    [
        (line("fee", begins="2026-10-15"), "2026-11 are closed"),
        (line("fee", begins="2026-11-15", ends="2026-10-30"), "2026-11 are closed"),
        (line("end", 0, fee=1, ends="2026-11-14"), "begins on 2026-11-15"),
    ],
)
def test_closed_months_stay_as_they_are(ledger, new, error):
    close_october(ledger)
    add(ledger, line("fee", begins="2026-11-15"))
    with pytest.raises(RateCardError, match=error):
        add(ledger, replace(new, reason="Another"))


def test_only_fees_end(ledger):
    credit = add(ledger, line())
    with pytest.raises(RateCardConflictError, match="is no fee"):
        add(ledger, line("end", 0, fee=credit.id, ends="2026-12-01"))


def test_the_same_line_twice_is_one_until_it_is_on_a_final_statement(ledger):
    first = add(ledger, line())
    assert add(ledger, line(requested_at=AT + 1)) == first
    close_october(ledger)
    assert add(ledger, line()).month == "2026-11"


def test_a_pending_line_can_be_withdrawn(ledger):
    pending = add(ledger, line(), approved=False)
    withdraw_line(ledger, pending.id, now=AT, actor="key:a")
    with pytest.raises(RateCardConflictError, match="was withdrawn"):
        approve_line(ledger, pending.id, now=AT, actor="key:b")
    assert add(ledger, line(), approved=False).id != pending.id

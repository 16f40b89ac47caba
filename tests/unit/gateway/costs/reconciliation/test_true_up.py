"""The month's cost becomes the invoice's, to the cent."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.costs.closing.closing import close
from gateway.costs.periods import iso
from gateway.costs.reconciliation.acceptances import accept
from gateway.costs.reconciliation.bill_differences import KINDS, BillDifference
from gateway.costs.reconciliation.bill_files import BillFormat
from gateway.costs.reconciliation.bills import import_bill
from gateway.costs.reconciliation.reconcile import TOLERANCE, reconcile
from gateway.costs.reconciliation.true_up import Books, open_books, true_up
from gateway.costs.reconciliation.true_up_store import TrueUpError, record_true_up, show_true_up
from gateway.costs.reports.closed_months import previewed
from gateway.units import DAY
from tests.support.ledger_rows import exchange_rate
from tests.unit.gateway.costs.billed import NOVEMBER, NOW
from tests.unit.gateway.costs.rolled import row, write

KINDS_HEAD = "start,end,resource,gpu_type,purchase,gpu_hours,cost,currency,category\n"


def difference(kind, cost):
    return BillDifference(kind, 0, Fraction(cost), 0, None, None)


def made(books, own, differences):
    invoice = own + sum((one.cost for one in differences), Fraction(0))
    done = true_up(books, own, invoice, differences)
    assert Fraction(done["list_cost"]) + sum(Fraction(one["cost"]) for one in done["lines"]) == invoice
    assert done["list_amount_cents"] + sum(one["amount_cents"] for one in done["lines"]) == round(
        invoice * 100
    )
    assert done["invoice_amount_cents"] == round(invoice * 100)
    assert all(one["tenant"] is None for one in done["lines"])
    return done


money = st.fractions(-(10**6), 10**6, max_denominator=10**4).map(lambda f: Fraction(round(f * 10**5), 10**5))


@given(money, money, st.lists(st.tuples(st.sampled_from(sorted(KINDS)), money), max_size=6))
def test_it_always_equals_the_invoice(closed, own, differences):
    books = Books(closed=True, cost=closed, cents=round(closed * 100), seal="x")
    made(books, own, [difference(kind, cost) for kind, cost in differences])


def invoice(ledger, tmp_path, *lines):
    path = tmp_path / "invoice.csv"
    path.write_text(KINDS_HEAD + "".join(f"{one}\n" for one in lines))
    import_bill(ledger, str(path), file_name="i", reading=BillFormat(), skip_bad=False, now=1)


TIME = f"{iso(NOVEMBER.start)},{iso(NOVEMBER.end)}"
HOURS = f"{iso(NOVEMBER.start)},{iso(NOVEMBER.start + 2 * 3_600_000_000)}"
INVOICE = (
    f"{HOURS},gpu-a,H100,on_demand,2,5.60,USD,usage",
    f"{TIME},,,,,-1.13,USD,credit",
    f"{TIME},,,,,0.85,USD,tax",
    f"{TIME},,,,,100.00,USD,purchase",
)


def recorded(ledger, **changes):
    return record_true_up(
        ledger, "2026-11", **{"tolerance": TOLERANCE, "invoice": None, "now": NOW, "by": "fk1", **changes}
    )


def accept_all(ledger):
    bill_ = reconcile(ledger, "2026-11", now=NOW)["bill"]
    lines = [one["line"] for account in bill_["accounts"] for one in account["lines"]]
    accept(ledger, "2026-11", lines=lines, reason="agreed with the provider", now=NOW, by="fk1")


def test_an_invoice_with_credits_taxes_and_a_commitment(settled, tmp_path):
    invoice(settled, tmp_path, *INVOICE)
    with pytest.raises(TrueUpError, match="not accepted"):
        recorded(settled)
    assert show_true_up(settled, "2026-11", tolerance=TOLERANCE, now=NOW)["preview"] is None
    accept_all(settled)
    done, new = recorded(settled, invoice=Fraction("105.32"))
    assert new
    assert {one["kind"]: (one["cost"], one["amount_cents"]) for one in done["lines"]} == {
        "tax": ("0.85", 85), "credit": ("-1.13", -113), "purchase": ("100.00", 10000), "rate": ("0.60", 60),
    }  # fmt: skip
    assert (done["list_cost"], done["invoice_amount_cents"], done["by"]) == ("5.00", 10532, "fk1")
    again, new = recorded(settled, now=NOW + 1)
    assert (again, new) == (done, False)
    shown = show_true_up(settled, "2026-11", tolerance=TOLERANCE, now=NOW)
    assert (shown["current"], len(shown["recorded"])) == (True, 1)


def test_a_closed_month_keeps_its_figures_and_a_later_bill_needs_a_new_true_up(settled, tmp_path):
    close(settled, "2026-11", now=NOW, by="fk1", policy="none", force=True)
    write(
        settled, row(NOVEMBER.start // 3_600_000_000, posted="2026-12", correction=True, nano_gpu_hours=10**8)
    )
    invoice(settled, tmp_path, *INVOICE)
    accept_all(settled)
    done, _ = recorded(settled)
    assert (done["books"], done["list_amount_cents"]) == ("closed", 500)
    assert done["lines"][0]["kind"] == "posted_in_other_months"
    assert done["lines"][0]["amount_cents"] == 25
    assert sum(one["amount_cents"] for one in done["lines"]) + 500 == 10532
    path = tmp_path / "credit-note.csv"
    path.write_text(KINDS_HEAD + f"{TIME},,,,,-3.00,USD,credit\n")
    import_bill(settled, str(path), file_name="c", reading=BillFormat(), skip_bad=False, now=2)
    assert not show_true_up(settled, "2026-11", tolerance=TOLERANCE, now=NOW)["current"]
    accept_all(settled)
    later, new = recorded(settled, now=NOW + 5)
    assert (new, later["invoice_amount_cents"]) == (True, 10232)


@pytest.mark.parametrize(
    ("lines", "changes", "says"),
    [
        ((), {}, "No bill is imported"),
        (INVOICE, {"now": NOVEMBER.end - 1}, "is not over yet"),
        ((f"{HOURS},gpu-a,H100,on_demand,2,5,EUR,usage",), {"tolerance": Fraction(100)}, "lines in EUR"),
    ],
)
def test_what_cannot_be_trued_up(settled, tmp_path, lines, changes, says):
    if lines:
        invoice(settled, tmp_path, *lines)
    if "EUR" in says:
        accept_all(settled)
    with pytest.raises(TrueUpError, match=says):
        recorded(settled, **changes)


def test_what_is_not_accepted_is_said_to_whoever_closes(settled, tmp_path):
    def said(of="2026-11"):
        return previewed(settled, of, NOW, None)["unaccepted"]

    assert said() == []  # nobody imports bills here
    invoice(settled, tmp_path, *INVOICE)
    assert "105.32 billed, not accepted: taxes" in said()[0]
    assert said("2026-10") == [
        "No bill is imported for 2026-10, so its cost is not reconciled: florin cost import-bill FILE."
    ]
    accept_all(settled)
    assert said() == []


def test_an_invoice_in_another_currency_is_converted_at_the_dated_rate_and_rounded_once(settled, tmp_path):
    lines = [one.replace("USD", "EUR") for one in INVOICE]
    invoice(settled, tmp_path, *lines)
    accept_all(settled)
    with pytest.raises(TrueUpError, match="exchange rate"):
        recorded(settled)
    for day, rate in ((NOVEMBER.start, "1.1234567"), (NOVEMBER.end, "9")):
        exchange_rate(settled, rate, day, currency="EUR", target="USD")
    accept_all(settled)
    with pytest.raises(TrueUpError, match=r"sum to 105.32 EUR, not to 118.32"):
        recorded(settled, invoice=Fraction("118.32"))
    done, _ = recorded(settled, invoice=Fraction("105.32"))
    exact = Fraction("105.32") * Fraction("1.1234567")
    assert Fraction(done["invoice_cost"]) == exact
    assert done["invoice_amount_cents"] == round(exact * 100)
    whole = done["list_amount_cents"] + sum(one["amount_cents"] for one in done["lines"])
    assert whole == done["invoice_amount_cents"]
    assert done["exchange_rates"] == [
        {"currency": "EUR", "target": "USD", "rate": "1.1234567", "valid_from": "2026-11-01", "source": "ECB"}
    ]
    assert done["billed"] == {"EUR": "105.32"}
    assert recorded(settled)[1] is False


def test_a_tax_that_spans_months_stays_a_tax(settled, tmp_path):
    """The part of a line within a month had no category, and was other charges."""
    spans = f"{iso(NOVEMBER.start - DAY)},{iso(NOVEMBER.start + DAY)}"
    invoice(settled, tmp_path, f"{HOURS},gpu-a,H100,on_demand,2,5.00,USD,usage", f"{spans},,,,,4.00,USD,tax")
    found = reconcile(settled, "2026-11", now=NOW)["bill"]["lines"]
    assert [(one["kind"], one["cost"]) for one in found] == [("tax", "2.00")]


def test_what_only_rounding_makes():
    """99.995 is 100.00 in the books, and so is the invoice of 100.005, half to even."""
    done = made(open_books(Fraction("99.995")), Fraction("99.995"), [difference("tax", "0.01")])
    assert [(one["kind"], one["amount_cents"]) for one in done["lines"]] == [("tax", 1), ("cents", -1)]


def test_a_month_whose_usage_still_arrives(november, tmp_path):
    with pytest.raises(TrueUpError, match="still arriving"):
        recorded(november)


def test_corrections_in_other_months_are_a_line_of_their_own():
    books = Books(closed=True, cost=Fraction(90), cents=9000, seal="ab")
    done = made(books, Fraction(100), [difference("credit", "-5")])
    assert [(one["kind"], one["cost"]) for one in done["lines"]] == [
        ("posted_in_other_months", "10.00"), ("credit", "-5.00"),
    ]  # fmt: skip
    assert (done["books"], done["seal"]) == ("closed", "ab")


def test_an_invoice_that_sums_to_something_else_is_refused(settled, tmp_path):
    invoice(settled, tmp_path, *INVOICE)
    accept_all(settled)
    with pytest.raises(TrueUpError, match=r"sum to 105\.32 USD, not to 105\.33"):
        recorded(settled, invoice=Fraction("105.33"))


def test_closing_at_the_same_amounts_leaves_a_true_up_current(settled, tmp_path):
    invoice(settled, tmp_path, *INVOICE)
    accept_all(settled)
    before, _ = recorded(settled)
    close(settled, "2026-11", now=NOW, by="fk1", policy="none", force=True)
    assert show_true_up(settled, "2026-11", tolerance=TOLERANCE, now=NOW)["current"]
    after, new = recorded(settled)
    assert (before["books"], after["books"], new, len(after["seal"])) == ("open", "closed", True, 64)
    assert before["lines"] == after["lines"]

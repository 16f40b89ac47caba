"""A statement in another currency: exact amounts times the dated rate, rounded once."""

from fractions import Fraction

import pytest

from gateway.costs.closing.closing import close
from gateway.costs.periods import month_of
from gateway.costs.prices.exchange_rates import ExchangeRateError
from gateway.costs.statement.page import statement_page
from tests.support.ledger_rows import exchange_rate
from tests.unit.gateway.costs.selling.cards import sell
from tests.unit.gateway.costs.selling.sold import NOW, arrive_late, fill, statement

RATE = Fraction("0.913456789")


def fill_ledger(ledger):
    """acme has a rate card, bolt pays the cost, with corrections in November."""
    fill(ledger)
    sell(ledger, "acme", name="dear", input_micros=600_000_000, minimum_micros=9_000_000)
    for day, rate in (("2026-10", "0.913456789"), ("2026-11", "0.8")):
        exchange_rate(ledger, rate, month_of(day).start)
    close(ledger, "2026-10", now=NOW, by="test", policy="proportional")
    arrive_late(ledger)


@pytest.fixture
def ledger(ledger_with):
    return ledger_with(fill_ledger)


@pytest.mark.parametrize("of", ["2026-10", "2026-11"])
@pytest.mark.parametrize("tenant", ["acme", "bolt", "corgi"])
def test_amounts_are_the_exact_ones_times_the_rate_of_the_month_s_end(ledger, tenant, of):
    own, euro = statement(ledger, tenant, of), statement(ledger, tenant, of, currency="EUR")
    rate = RATE if of == "2026-10" else Fraction("0.8")
    assert euro["currency"] == "EUR"
    assert euro["converted_from"]["amount_cents"] == own["amount_cents"]
    assert Fraction(euro["converted_from"]["rate"]) == rate
    assert abs(euro["amount_cents"] - own["amount_cents"] * rate) <= 1
    if own["charges"]:
        exact = Fraction(own["charges"]["exact"]) * rate
        assert Fraction(euro["charges"]["exact"]) == exact
        assert euro["amount_cents"] == int(exact * 100 + Fraction(1, 2))
        assert sum(line["amount_cents"] for line in euro["charges"]["lines"]) == euro["amount_cents"]
        for line, before in zip(euro["charges"]["lines"], own["charges"]["lines"], strict=True):
            if "per_million" in line:
                assert Fraction(line["per_million"]) == Fraction(before["per_million"]) * rate
                charged = (line["tokens"] - line["free_tokens"]) * Fraction(line["per_million"]) / 10**6
                assert Fraction(line["exact"]) == charged
    else:
        parts = [*euro["usage"], *euro["corrections"]]
        assert sum(one["amount_cents"] for one in parts) + euro["unused_time_cents"] == euro["amount_cents"]


def test_in_the_price_book_s_currency_nothing_is_converted(ledger):
    assert statement(ledger, "acme", currency="USD") == statement(ledger, "acme")
    assert statement(ledger, "acme")["converted_from"] is None


def test_the_page_names_the_rate_and_what_is_sealed(ledger):
    page = statement_page(ledger, "acme", "2026-10", issuer="Nordlicht", now=NOW, known=True, currency="EUR")
    cents = statement(ledger, "acme")["amount_cents"]
    assert f"Converted from {cents // 100}.{cents % 100:02d} USD at 0.913456789 EUR (ECB, 2026-10-01)" in page
    assert "the seal covers the USD amounts" in page


@pytest.mark.parametrize(
    ("for_tenant", "said"), [(False, "florin exchange-rate add"), (True, "ask your provider")]
)
def test_without_a_rate_it_says_what_to_do(ledger, for_tenant, said):
    with pytest.raises(ExchangeRateError, match=said):
        statement(ledger, "acme", currency="JPY", for_tenant=for_tenant)

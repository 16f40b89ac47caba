"""Rate cards in the ledger: append-only, and never in a month that is closed."""

import pytest

from gateway.costs.closing.closing import close
from gateway.costs.selling.assignments import Assignment
from gateway.costs.selling.card_store import add_card, assign, list_cards
from gateway.costs.selling.cards import RateCardConflictError, RateCardError
from gateway.metering.ledger.audit_log import Wanted, read
from tests.unit.gateway.costs.month import DECEMBER, fill
from tests.unit.gateway.costs.selling.cards import card

NOW = DECEMBER + 3_600_000_000


@pytest.fixture
def ledger(ledger_with):
    return ledger_with()


def add(ledger, default_start=False, **changes):
    return add_card(ledger, card(**changes), default_start=default_start, actor="key:a")


def test_the_same_again_changes_nothing(ledger):
    assert add(ledger)[1]
    assert not add(ledger)[1]
    assert not add(ledger, default_start=True)[1]
    assert len(list_cards(ledger).cards) == 1
    assert [e.action for e in read(ledger, Wanted(), 9)] == ["rate_card.add"]


def test_other_terms_need_a_reason_and_the_earlier_ones_are_kept(ledger):
    add(ledger)
    with pytest.raises(RateCardConflictError, match="say why"):
        add(ledger, input_micros=1)
    new, _ = add(ledger, input_micros=1, reason="a typing error")
    cards = list_cards(ledger)
    assert [c.input_micros for c in cards.cards] == [600_000, 1]
    assert cards.version("standard", "2026-11") == new
    assert add(ledger, default_start=True, input_micros=2)[0].valid_from == "2026-11"


def test_cards_have_one_currency_with_the_price_book(ledger):
    fill(ledger)
    with pytest.raises(RateCardConflictError, match="prices are in USD"):
        add(ledger, currency="EUR")


def test_a_card_must_exist_when_it_is_assigned(ledger):
    with pytest.raises(RateCardError, match=r"There is no rate card 'standard'\. Add one"):
        assign(ledger, Assignment("acme", "standard", "2026-11", 1))
    add(ledger, valid_from="2026-12")
    with pytest.raises(RateCardError, match="valid from 2026-12, so it cannot be assigned from 2026-11"):
        assign(ledger, Assignment("acme", "standard", "2026-11", 1))
    with pytest.raises(RateCardError, match="The rate cards are standard"):
        assign(ledger, Assignment("acme", "gold", "2026-11", 1))


def test_closed_months_keep_their_prices(ledger):
    fill(ledger)
    close(ledger, "2026-10", now=NOW, by="test")
    for change in ({}, {"valid_from": "2026-09"}):
        with pytest.raises(RateCardError, match="closed and keeps its prices: let it begin with 2026-11"):
            add(ledger, **change)
    add(ledger, valid_from="2026-11")
    with pytest.raises(RateCardError, match=r"cannot be assigned|closed"):
        assign(ledger, Assignment("acme", "standard", "2026-10", 1))
    assert assign(ledger, Assignment("acme", "standard", "2026-11", 1))[1]
    assert not assign(ledger, Assignment("acme", "standard", "2026-11", 5))[1]

"""Corrected and withdrawn prices, prices that resume, and GPU types in another case."""

from __future__ import annotations

import json

import pytest
from sqlalchemy import select

from gateway.costs.closing.closing import close
from gateway.costs.cost_lines import read_lines
from gateway.costs.periods import month_of
from gateway.costs.prices.book import Price, PriceBook
from gateway.costs.prices.corrections import Change, NoPriceError, correct_price
from gateway.costs.prices.price import PriceConflictError, PriceError, in_force
from gateway.costs.prices.price_store import add_price, list_history, list_prices
from gateway.costs.reports.report import Question, read_report
from gateway.costs.rollups.rollup import roll
from gateway.costs.verification.verify import verify
from gateway.metering.ledger.schema import audit_log, dirty_hours, periods
from gateway.units import DAY, HOUR
from tests.unit.gateway.costs.month import DECEMBER, NOVEMBER, fill

ON = ("", "on_demand")


def price(start, end=None, rate=2, number=0, **changes):
    fields = {"gpu_type": "H100", "currency": "USD", "purchase": "on_demand", "region": ""} | changes
    return Price(rate_micros=rate, valid_from=start, valid_to=end, recorded_at=0, id=number, **fields)


def add(ledger, rate="2.50", **changes):
    fields = {
        "gpu_type": "H100", "currency": "USD", "purchase": "on_demand", "region": "", "valid_from": None,
        "valid_to": None, "now": 5000,
    }  # fmt: skip
    return add_price(ledger, rate=rate, **{**fields, **changes})[0]


def correct(ledger, number, **change):
    return correct_price(ledger, number, Change(**{"reason": "typed wrongly", **change}), now=9000, actor="x")


def rates(ledger, *times, gpu_type="H100"):
    book = PriceBook(list_prices(ledger))
    return [book.rate(gpu_type, *ON, at) for at in times]


# -- resuming


def test_an_open_ended_price_resumes_after_one_that_ends():
    book = PriceBook([price(0, rate=1), price(100, 200, rate=9), price(200, 250, rate=8), price(400, rate=2)])
    assert [book.rate("H100", *ON, t) for t in (99, 100, 199, 200, 249, 250, 399, 400)] == [
        1, 9, 9, 8, 8, 1, 1, 2,
    ]  # fmt: skip
    assert book.changes("H100", *ON, 0, 1000) == [100, 200, 250, 400]


# -- GPU types


def test_a_gpu_type_is_found_in_any_case():
    book = PriceBook([price(0, rate=1, gpu_type="h100")])
    assert book.rate("H100", *ON, 5) == 1
    assert book.rate("H200", *ON, 5) is None


def test_a_new_price_is_spelled_as_the_book_spells_it(ledger):
    add(ledger, gpu_type="h100")
    assert add(ledger, "3", gpu_type="H100", valid_from=7000).gpu_type == "h100"
    assert rates(ledger, 6999, 7000) == [2_500_000, 3_000_000]
    with pytest.raises(PriceConflictError, match="already has a price"):
        add(ledger, "4", gpu_type="H100", valid_from=7000)


# -- correcting


def test_a_price_with_an_end_can_be_corrected(ledger):
    """Neither the same start nor a later one was possible, and afterwards there was no price at all."""
    add(ledger, "2")
    wrong = add(ledger, "30", valid_from=100, valid_to=200)
    with pytest.raises(PriceConflictError, match=f"florin price correct {wrong.id} --reason"):
        add(ledger, "3", valid_from=100, valid_to=200)
    right = correct(ledger, wrong.id, rate="3")
    assert (right.supersedes, right.reason, right.valid_to) == (wrong.id, "typed wrongly", 200)
    assert rates(ledger, 99, 100, 199, 200) == [2_000_000, 3_000_000, 3_000_000, 2_000_000]
    assert [(p.id, p.rate_micros) for p in list_history(ledger)] == [
        (1, 2_000_000), (2, 30_000_000), (3, 3_000_000),
    ]  # fmt: skip


def test_a_withdrawn_price_is_as_if_it_had_never_been(ledger):
    add(ledger, "2")
    wrong = add(ledger, "30", valid_from=100)
    gone = correct(ledger, wrong.id, withdraw=True)
    assert rates(ledger, 100, 10**9) == [2_000_000, 2_000_000]
    again = add(ledger, "4", valid_from=100)
    assert rates(ledger, 100) == [4_000_000]
    correct(ledger, again.id, withdraw=True)
    correct(ledger, gone.id, rate="5")  # a withdrawal can be corrected, too
    assert rates(ledger, 100) == [5_000_000]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"rate": "cheap"}, PriceError),
        ({"rate": "2"}, PriceError),  # as before
        ({}, PriceError),
        ({"reason": " ", "rate": "3"}, PriceError),
        ({"valid_to": 100}, PriceError),
        ({"valid_to": 150, "open_ended": True}, PriceError),
        ({"withdraw": True, "rate": "3"}, PriceError),
        ({"valid_to": 301}, PriceConflictError),
        ({"valid_from": 300}, PriceError),
        ({"valid_from": 300, "valid_to": 350}, PriceConflictError),
    ],
)
def test_what_cannot_be_corrected(ledger, change, error):
    number = add(ledger, "2", valid_from=100, valid_to=200).id
    add(ledger, "2", valid_from=300, valid_to=400)
    with pytest.raises(error):
        correct(ledger, number, **change)
    assert len(list_history(ledger)) == 2


def test_a_price_is_corrected_once(ledger):
    number = add(ledger).id
    second = correct(ledger, number, rate="3")
    with pytest.raises(PriceConflictError, match=f"corrected by price {second.id}"):
        correct(ledger, number, rate="4")
    assert correct(ledger, second.id, rate="4").rate_micros == 4_000_000
    with pytest.raises(NoPriceError):
        correct(ledger, 99, rate="4")
    assert [p.id for p in in_force(list_history(ledger))] == [3]


def test_who_corrected_and_why_is_in_the_audit_log(ledger):
    number = add(ledger).id
    correct(ledger, number, rate="3")
    with ledger.read() as connection:
        [row] = connection.execute(select(audit_log).where(audit_log.c.action == "price.correct")).all()
    told = json.loads(row.document) if hasattr(row, "document") else row
    assert "typed wrongly" in str(told)
    assert row.actor == "x"


# -- what a correction makes stale


def test_hours_within_which_a_corrected_price_begins_or_ends_are_rolled_up_again(ledger):
    fill(ledger)
    roll(ledger, DECEMBER)
    late = next(p for p in list_prices(ledger) if p.valid_from > NOVEMBER)
    correct(ledger, late.id, valid_from=NOVEMBER + 3 * HOUR + 5)
    with ledger.read() as connection:
        hours = set(connection.execute(select(dirty_hours.c.hour)).scalars())
    assert hours == {NOVEMBER + 2 * HOUR, NOVEMBER + 3 * HOUR}
    roll(ledger, DECEMBER)
    with ledger.read() as connection:
        book = PriceBook(list_prices(ledger))
        lines = list(read_lines(connection, book, month_of("2026-11"), ("hour", "engine")))
    at_three = [line for line in lines if line.keys == ("2026-11-01T03:00:00Z", "a")]
    assert {line.rate_micros for line in at_three} == {2_490_000, 2_191_919}


def test_a_closed_month_is_corrected_in_the_open_one_and_still_verifies(ledger):
    fill(ledger)
    close(ledger, "2026-10", now=NOVEMBER + DAY, by="test")
    before = document(ledger)
    wrong = next(p for p in list_prices(ledger) if p.gpu_type == "L40")
    correct(ledger, wrong.id, rate="0.35")
    roll(ledger, DECEMBER)
    with ledger.read() as connection:
        report = read_report(connection, Question(month_of("2026-11"), ("gpu_type",)))
    corrected = report["corrections"]["totals"]
    assert corrected["cost"].startswith("-")
    assert corrected["nano_gpu_hours"] == 0
    assert document(ledger) == before
    [checked] = verify(ledger, "2026-10")
    assert [c for c in checked.checks if c.ok is False] == []


def document(ledger):
    with ledger.read() as connection:
        return connection.execute(select(periods.c.document)).scalar_one()


def test_each_part_of_a_price_can_be_corrected(ledger):
    number = add(ledger, "2", valid_to=200, valid_from=100).id
    new = correct(
        ledger, number, gpu_type="L40", region="eu", purchase="spot", valid_from=50, open_ended=True,
        speedup="0.5", speedup_reference="H100", speedup_source="vendor",
    )  # fmt: skip
    assert new.series == ("L40", "eu", "spot")
    assert (new.valid_from, new.valid_to, new.rate_micros) == (50, None, 2_000_000)
    assert (new.speedup_millis, new.speedup_reference) == (500, "H100")
    assert correct(ledger, new.id, valid_to=60).valid_to == 60


def test_a_book_that_tells_cases_apart_is_read_as_it_stands():
    book = PriceBook([price(0, rate=1, gpu_type="h100"), price(0, rate=2, gpu_type="H100")])
    assert [book.rate(name, *ON, 5) for name in ("h100", "H100", "H100".title())] == [1, 2, 2]


def test_the_currency_of_the_only_price_can_be_changed_by_withdrawing_it(ledger):
    correct(ledger, add(ledger).id, withdraw=True)
    assert add(ledger, "2", currency="EUR").currency == "EUR"

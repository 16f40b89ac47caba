"""Rows from pieces, and corrections from what stands; by hand."""

import pytest

from gateway.costs.rollups.attribution import HourInput, divide
from gateway.costs.rollups.posting import (
    BY_BOOK,
    HourContext,
    RowKey,
    RowPrice,
    corrections,
    details,
    rows_of,
)
from gateway.units import HOUR

POOL = HourContext("eu", "spot", "base", 0)
HALF = HOUR // 2
USD = RowPrice(2_000_000, "USD")


def read(
    start, end, *, tenant="acme", prompt=10, cached=None, completion=5, outcome="ok", billable=1, name="a"
):
    return (
        name, start, end, prompt, cached, completion, 0, None, 2, outcome, billable,
        tenant, f"{tenant}/x", "v1", "base", "",
    )  # fmt: skip


def rows(attempts, rejected=(), **hour):
    pieces = divide(HourInput(**{"hour": 0, "gpus": 1, **hour}), attempts)
    return rows_of(details(POOL, pieces, attempts, rejected))


def key(bucket="usage", tenant="acme", piece=0):
    owner = (tenant, f"{tenant}/x", "v1") if tenant else ("", "", "")
    return RowKey(piece, bucket, *owner, "base", "eu", "spot", 0)


def test_attempts_of_one_owner_are_one_row():
    made = rows(
        [read(0, HALF, name="a"), read(0, HALF, name="b", cached=4), read(0, HALF, name="c", tenant="bolt")]
    )
    assert made == {
        key(): (2, 20, 4, 10, 4, 321_428_572, 16, 0, 20, 0),
        key(tenant="bolt"): (1, 10, 0, 5, 2, 178_571_428, 10, 0, 10, 0),
    }


def test_what_was_not_delivered_is_waste():
    made = rows([read(0, HALF), read(0, HALF, name="b", billable=0, outcome="failover")])
    assert {k.bucket: figures[0] for k, figures in made.items()} == {"usage": 1, "retry_waste": 1}


def test_counts_stand_where_the_attempt_ended_and_time_where_it_was_spent():
    made = rows([read(0, HOUR - 1)], [read(5, 9, outcome="rejected", billable=0)], cuts=[HALF])
    first, second, rejected = made[key()], made[key(piece=HALF)], made[key("rejected")]
    assert (first[:5], second[:5], rejected[5:]) == ((0, 0, 0, 0, 0), (1, 10, 0, 5, 2), (0, 0, 0, 0, 0))
    assert (first[5], first[6] + second[6], first[8] + second[8]) == (HALF * 10 // 36, 10, 10)
    assert rows([read(0, HOUR)])[key()][0] == 0, "it ended in the next hour"
    assert rows([read(-HALF, 0)])[key()] == (1, 10, 0, 5, 2, 0, 0, 0, 0, 0)


A, B = key(), key(tenant="bolt")
ONE, TWO = (1, 10, 0, 5, 0, 100, 10, 0, 10, 0), (2, 20, 0, 10, 0, 300, 20, 0, 20, 0)


def negative(figures):
    return tuple(-f for f in figures)


def corrected(standing, fresh, price=USD):
    return corrections(standing, fresh, lambda _: price)


LATER = RowPrice(3_000_000, "USD")
STANDS, BACK, ANEW = (A, USD, ONE), (A, USD, negative(ONE)), (A, BY_BOOK, ONE)
CORRECTED = [STANDS, BACK, (A, LATER, TWO)]


@pytest.mark.parametrize(
    ("standing", "fresh", "price", "posted"),
    [
        ([STANDS, (B, USD, ONE)], {A: TWO, B: ONE}, USD, [BACK, (A, BY_BOOK, TWO)]),
        ([STANDS], {B: ONE}, USD, [BACK, (B, BY_BOOK, ONE)]),
        ([STANDS], {A: ONE}, LATER, [BACK, ANEW]),
        (CORRECTED, {A: TWO}, LATER, []),
        (CORRECTED, {A: ONE}, LATER, [(A, LATER, negative(TWO)), ANEW]),
        ([STANDS, STANDS], {}, USD, [(A, USD, tuple(2 * figure for figure in negative(ONE)))]),
        # Without a price there is none to correct to.
        ([ANEW], {A: ONE}, USD, []),
        ([STANDS], {A: ONE}, BY_BOOK, []),
    ],
)
def test_what_differs_is_taken_back_at_its_price_and_posted_anew(standing, fresh, price, posted):
    assert corrected(standing, fresh, price) == posted


def test_what_was_charged_stays_charged_when_the_book_falls_silent():
    """A second series for the GPU type: whoever comes late has the price that all others had."""
    assert corrected([(A, USD, ONE)], {A: TWO}, BY_BOOK) == [(A, USD, negative(ONE)), (A, USD, TWO)]
    assert corrected([(A, USD, ONE)], {A: ONE, B: TWO}, BY_BOOK) == [(B, USD, TWO)]


def test_two_prices_in_one_piece_leave_the_choice_open():
    other = RowPrice(7, "USD")
    made = corrected([(A, USD, ONE), (B, other, ONE)], {A: ONE, B: TWO}, BY_BOOK)
    assert made == [(B, other, negative(ONE)), (B, BY_BOOK, TWO)]

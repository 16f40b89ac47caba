import pytest

from gateway.costs.prices import (
    Price,
    PriceBook,
    PriceConflictError,
    PriceError,
    add_price,
    check,
    decimal_text,
    list_prices,
    rate_micros,
)
from gateway.metering.ledger import Ledger


def price(start, end=None, rate=2_500_000, **changes):
    fields = {"gpu_type": "H100", "currency": "USD", "purchase": "on_demand", "region": ""} | changes
    return Price(rate_micros=rate, valid_from=start, valid_to=end, recorded_at=0, **fields)


@pytest.mark.parametrize(
    ("text", "micros"),
    [("2.50", 2_500_000), ("0", 0), ("0.000001", 1), ("41.04", 41_040_000), ("1e2", 100_000_000)],
)
def test_rates_are_exact(text, micros):
    assert rate_micros(text) == micros


@pytest.mark.parametrize(
    "text", ["", "x", "-1", "0.0000001", "NaN", "Infinity", "1e9", "2,50", "1" * 5000, "1e999999999"]
)
def test_what_is_no_rate(text):
    with pytest.raises(PriceError) as caught:
        rate_micros(text)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("units", "places", "text"),
    [
        (2_500_000, 6, "2.50"),
        (0, 15, "0.00"),
        (1, 15, "0.000000000000001"),
        (-1_500_000, 6, "-1.50"),
        (7, 0, "7.00"),
    ],
)
def test_decimals_are_exact_and_never_in_exponents(units, places, text):
    assert decimal_text(units, places) == text


def test_a_price_holds_until_the_next():
    book = PriceBook([price(300, rate=3), price(100, rate=1)])
    assert [book.rate("H100", t) for t in (99, 100, 299, 300, 10**15)] == [None, 1, 1, 3, 3]
    assert book.rate("A100", 100) is None
    assert book.changes("H100", 100, 1000) == [300]
    assert book.changes("H100", 99, 300) == [100]


def test_a_price_with_an_end_leaves_a_gap():
    book = PriceBook([price(100, 200, rate=1), price(300, rate=3)])
    assert [book.rate("H100", t) for t in (199, 200, 299, 300)] == [1, None, None, 3]
    assert book.changes("H100", 0, 1000) == [100, 200, 300]


def test_on_demand_is_meant_where_there_are_several_and_the_only_one_where_there_is_one():
    spot = price(0, rate=1, purchase="spot")
    assert PriceBook([spot]).rate("H100", 5) == 1
    assert PriceBook([spot, price(0, rate=2)]).rate("H100", 5) == 2
    assert PriceBook([spot, price(0, rate=3, region="eu")]).rate("H100", 5) is None


@pytest.mark.parametrize(
    "new",
    [
        price(100, rate=9),
        price(100, 150),
        price(150, 250, rate=1),
        price(50, 101, rate=1),
        price(199, rate=1),
        price(0, currency="EUR", region="eu"),
    ],
)
def test_overlaps_and_contradictions_are_refused(new):
    with pytest.raises(PriceConflictError):
        check(new, [price(100, 200)])


@pytest.mark.parametrize(
    "new", [price(200), price(0, 100), price(0), price(150, gpu_type="A100"), price(150, purchase="spot")]
)
def test_what_meets_without_overlap_is_taken(new):
    assert check(new, [price(100, 200)]) is None


@pytest.fixture
def ledger(tmp_path):
    made = Ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
    yield made
    made.close()


def add(ledger, rate="2.50", **changes):
    fields = {
        "gpu_type": "H100", "currency": "USD", "purchase": "on_demand", "region": "", "valid_from": None,
        "valid_to": None, "now": 5000,
    }  # fmt: skip
    return add_price(ledger, rate=rate, **{**fields, **changes})


def test_the_first_price_holds_from_the_beginning_and_a_later_one_from_now(ledger):
    assert add(ledger)[0].valid_from == 0
    assert add(ledger, "3.00")[0].valid_from == 5000
    assert [(p.rate_micros, p.valid_from) for p in list_prices(ledger)] == [(2_500_000, 0), (3_000_000, 5000)]


def test_the_same_price_again_changes_nothing(ledger):
    first, new = add(ledger)
    assert new
    assert add(ledger) == (first, False)
    assert add(ledger, valid_from=0) == (first, False)
    assert len(list_prices(ledger)) == 1


def test_going_back_to_an_earlier_rate_is_a_new_price(ledger):
    add(ledger)
    add(ledger, "3.00")
    assert add(ledger, "2.50", now=6000)[1]
    assert PriceBook(list_prices(ledger)).rate("H100", 7000) == 2_500_000


def test_a_price_that_ends_before_it_begins_is_refused(ledger):
    with pytest.raises(PriceError):
        add(ledger, valid_from=100, valid_to=100)
    add(ledger, valid_from=0, valid_to=100)
    with pytest.raises(PriceConflictError):
        add(ledger, valid_from=50, valid_to=150)
    assert len(list_prices(ledger)) == 1

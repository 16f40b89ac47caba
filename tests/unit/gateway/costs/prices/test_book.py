import pytest
from sqlalchemy import select

from gateway.costs.periods import month_of
from gateway.costs.prices.book import (
    Price,
    PriceBook,
    PriceConflictError,
    check,
    rate_micros,
)
from gateway.costs.prices.price_store import add_price, list_prices
from gateway.metering.ledger.schema import dirty_hours, engine_hours, ledger_state
from gateway.units import HOUR
from tests.support.ledger_rows import engine_hour, mark_closed, put


def price(start, end=None, rate=2_500_000, **changes):
    fields = {"gpu_type": "H100", "currency": "USD", "purchase": "on_demand", "region": ""} | changes
    return Price(rate_micros=rate, valid_from=start, valid_to=end, recorded_at=0, **fields)


@pytest.mark.parametrize(
    ("text", "micros"),
    [("2.50", 2_500_000), ("0", 0), ("0.000001", 1), ("41.04", 41_040_000), ("1e2", 100_000_000)],
)
def test_rates_are_exact(text, micros):
    assert rate_micros(text) == micros


def rate(prices, region="", purchase="on_demand"):
    return PriceBook(prices).rate("H100", region, purchase, 5)


def test_the_price_of_all_regions_fills_the_gaps_of_a_region_s_own():
    prices = [
        price(0, 350, rate=1), price(350, rate=4), price(100, 200, rate=2, region="eu"),
        price(300, 400, rate=3, region="eu"),
    ]  # fmt: skip
    book = PriceBook(prices)
    times = (99, 100, 200, 300, 399, 400)
    assert [book.rate("H100", "eu", "on_demand", t) for t in times] == [1, 2, 1, 3, 3, 4]
    assert book.changes("H100", "eu", "on_demand", 0, 1000) == [100, 200, 300, 400]
    assert book.changes("H100", "us", "on_demand", 0, 1000) == [350]


def test_gaps_that_no_price_fills():
    prices = [price(100, 200), price(300, 400), price(200, 250, region="eu"), price(500, region="eu")]
    book = PriceBook(prices)
    assert book.gaps(("H100", "", "on_demand"), 0) == [(0, 100), (200, 300), (400, None)]
    assert book.gaps(("H100", "eu", "on_demand"), 150) == [(250, 300), (400, 500)]
    assert book.gaps(("H100", "eu", "on_demand"), 600) == []
    assert book.gaps(("H100", "", "spot"), 7) == [(7, None)]


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


def add(ledger, rate="2.50", **changes):
    fields = {
        "gpu_type": "H100", "currency": "USD", "purchase": "on_demand", "region": "", "valid_from": None,
        "valid_to": None, "now": 5000,
    }  # fmt: skip
    return add_price(ledger, rate=rate, **{**fields, **changes})


# -- speed


# -- what a price makes stale


NOV = month_of("2026-11").start // HOUR


def rolled(ledger, *hours, gpu_type="H100", region="", engine="e"):
    """Engine-hours that are up to date."""
    pool = {"gpu_type": gpu_type, "region": region, "engine": engine}
    put(ledger, engine_hours, *(engine_hour(hour, **pool) for hour in hours))


def close(ledger):
    mark_closed(ledger, "2026-11")


def stale(ledger):
    with ledger.read() as connection:
        query = select(dirty_hours.c.hour, dirty_hours.c.engine, dirty_hours.c.gpu_type)
        return sorted((hour // HOUR, engine, gpu) for hour, engine, gpu in connection.execute(query))


def test_hours_of_open_months_are_stale_where_a_price_cuts_them(ledger):
    rolled(ledger, *range(NOV, NOV + 10))
    rolled(ledger, NOV + 3, gpu_type="L4")
    rolled(ledger, NOV + 3, region="eu", engine="f")
    add(ledger, valid_from=(NOV + 3) * HOUR + 1, valid_to=(NOV + 7) * HOUR - 1)
    assert stale(ledger) == [(NOV + 3, "e", "H100"), (NOV + 3, "f", "H100"), (NOV + 6, "e", "H100")]


def test_hours_of_closed_months_are_stale_where_their_rate_changes(ledger):
    add(ledger, "1", valid_from=0)
    add(ledger, "9", valid_from=(NOV + 8) * HOUR)
    rolled(ledger, *range(NOV, NOV + 10), NOV + 31 * 24)
    rolled(ledger, *range(NOV, NOV + 10), gpu_type="L4")
    rolled(ledger, *range(NOV, NOV + 10), region="eu", engine="f")
    close(ledger)
    add(ledger, "2", valid_from=(NOV + 5) * HOUR)
    both = [(NOV + n, engine, "H100") for n in (5, 6, 7) for engine in "ef"]
    assert stale(ledger) == both


def test_a_price_that_says_nothing_new_makes_nothing_stale(ledger):
    add(ledger, "1", valid_from=0)
    rolled(ledger, *range(NOV, NOV + 10))
    close(ledger)
    add(ledger, "1", valid_from=(NOV + 5) * HOUR)
    add(ledger, "7", region="eu", valid_from=0)
    assert stale(ledger) == []


def test_the_first_price_of_a_series_leaves_closed_months_alone(ledger):
    close(ledger)
    rolled(ledger, NOV)
    price, _ = add(ledger)
    assert price.valid_from == month_of("2026-12").start
    assert stale(ledger) == []


def test_a_price_cannot_change_hours_whose_records_are_gone(ledger):
    rolled(ledger, NOV, NOV + 5)
    close(ledger)
    put(ledger, ledger_state, {"name": "pruned_before", "value": (NOV + 3) * HOUR})
    with pytest.raises(PriceConflictError, match="removed"):
        add(ledger, valid_from=0)
    assert list_prices(ledger) == []
    add(ledger, valid_from=(NOV + 3) * HOUR)
    assert stale(ledger) == [(NOV + 5, "e", "H100")]

import sqlite3

import pytest

from gateway.costs.cost_lines import DIMENSIONS, effective, read_lines
from gateway.costs.periods import Period, instant, month_of
from gateway.costs.prices.book import PriceBook
from gateway.costs.prices.price_store import list_prices, read_prices
from gateway.costs.rollups.parts import DIMENSIONS as PART_DIMENSIONS
from gateway.metering.ledger.schema import prices
from gateway.units import HOUR
from tests.support.ledger_rows import price, put
from tests.unit.gateway.costs.rolled import lines, row, write

NOVEMBER, DECEMBER = month_of("2026-11"), month_of("2026-12")
NOV = NOVEMBER.start // HOUR
DEC = DECEMBER.start // HOUR


def read(ledger, period=NOVEMBER, by=(), **options):
    return list(lines(ledger, period, by, **options))


def test_every_sum_is_its_own(ledger):
    counts = {
        "requests": 1, "prompt_tokens": 2, "cached_tokens": 3, "completion_tokens": 4, "reasoning_tokens": 5,
        "nano_gpu_hours": -6, "weight_input": 7, "weight_cached": 8, "weight_output": 9, "weight_other": 10,
    }  # fmt: skip
    write(ledger, row(NOV, **counts), row(NOV, **counts))
    [line] = read(ledger)
    assert {name: getattr(line, name) for name in counts} == {name: 2 * n for name, n in counts.items()}


def test_every_dimension(ledger):
    write(ledger, row(NOV + 30, region="eu", purchase="spot"))
    [line] = read(ledger, by=[name for name in DIMENSIONS if name not in PART_DIMENSIONS])
    assert line.keys == (
        "acme", "acme/support", "v1", "base", "H100", "gpu-a", "eu", "spot",
        "2026-11-02T06:00:00Z", "2026-11-02",
    )  # fmt: skip
    with pytest.raises(ValueError, match="colour"):
        read(ledger, by=("colour",))


def test_sums_beyond_64_bits(ledger):
    huge = 2**63 - 1
    write(ledger, *(row(NOV + i, weight_input=huge, nano_gpu_hours=-huge) for i in range(5)))
    [line] = read(ledger)
    assert (line.weight_input, line.nano_gpu_hours) == (5 * huge, -5 * huge)


def test_a_month_is_what_is_posted_to_it_and_another_range_is_what_is_known_now(ledger):
    write(
        ledger,
        row(NOV, prompt_tokens=1),
        row(NOV, prompt_tokens=-1, posted="2026-12", correction=True),
        row(NOV, prompt_tokens=5, posted="2026-12", correction=True),
        row(DEC, prompt_tokens=100),
    )

    def prompt(period):
        return sum(line.prompt_tokens for line in read(ledger, period))

    assert prompt(NOVEMBER) == 1
    assert prompt(DECEMBER) == 104
    assert prompt(Period(NOVEMBER.start, DECEMBER.end)) == 105
    assert prompt(Period(NOVEMBER.start, NOVEMBER.start + HOUR)) == 5
    assert prompt(Period(DECEMBER.start, DECEMBER.end - HOUR)) == 100


def test_a_range_is_widened_to_whole_hours(ledger):
    write(ledger, row(100), row(101), row(102))
    period = Period(100 * HOUR + 1, 101 * HOUR + 1)
    assert effective(period) == Period(100 * HOUR, 102 * HOUR)
    assert [line.keys for line in read(ledger, period, ("hour",))] == [
        ("1970-01-05T04:00:00Z",),
        ("1970-01-05T05:00:00Z",),
    ]
    assert read(ledger, Period(101 * HOUR, 101 * HOUR)) == []


def test_only_the_rows_of_a_tenant_that_is_each_of_them(ledger):
    write(ledger, row(NOV), row(NOV, tenant="bolt"), row(NOV, bucket="idle"))
    assert [line.keys for line in read(ledger, by=("tenant",), tenants=["acme", "acme"])] == [("acme",)]
    assert read(ledger, tenants=["acme", "bolt"]) == []


PRICE_BOOKS = {
    "none": [],
    "one": [{"rate": "1"}],
    "from then on": [{"rate": "1", "valid_from": 50 * HOUR}],
    "gaps": [
        {"rate": "1", "valid_from": 10 * HOUR, "valid_to": 20 * HOUR},
        {"rate": "2", "valid_from": 30 * HOUR, "valid_to": 40 * HOUR},
        {"rate": "3", "valid_from": 40 * HOUR},
    ],
    "regions": [
        {"rate": "1", "region": "eu", "valid_from": 20 * HOUR, "valid_to": 30 * HOUR},
        {"rate": "2"},
        {"rate": "3", "purchase": "spot"},
        {"rate": "4", "region": "us", "purchase": "spot"},
    ],
    "only spot": [{"rate": "1", "purchase": "spot", "region": "us"}],
    "two, not chosen": [{"rate": "1", "region": "us"}, {"rate": "2", "region": "eu"}],
    "hourly": [{"rate": str(i), "valid_from": i * HOUR} for i in range(1, 60)],
    "two types": [{"rate": "1"}, {"rate": "2", "gpu_type": "L4", "region": "eu"}],
}


@pytest.mark.parametrize("name", PRICE_BOOKS)
def test_the_database_prices_as_the_price_book_does(ledger, name):
    for entry in PRICE_BOOKS[name]:
        price(ledger, **entry)
    book = PriceBook(list_prices(ledger))
    write(
        ledger,
        *(
            row(hour, piece=hour * HOUR + late, gpu_type=gpu_type, region=region, purchase=purchase)
            for hour in range(60)
            for late in (0, 1)
            for gpu_type in ("H100", "L4")
            for region in ("", "eu", "us")
            for purchase in ("on_demand", "spot")
        ),
    )
    seen = 0
    for line in read(ledger, Period(0, 60 * HOUR), ("hour",)):
        at = instant("hour", line.keys[0])
        assert line.rate_micros == book.rate(line.gpu_type, line.region, line.purchase, at)
        seen += line.requests
    assert seen == 60 * 2 * 12


def test_a_spot_price_every_hour_of_years(ledger):
    """Far more prices than SQLite takes parameters or nests expressions."""
    terms = {
        "gpu_type": "H100", "region": "", "purchase": "on_demand", "currency": "USD", "recorded_at": 0,
    }  # fmt: skip
    put(ledger, prices, *({**terms, "valid_from": i * HOUR, "rate_micros": i % 977} for i in range(2000)))
    write(ledger, row(1900))
    with ledger.read() as connection:
        if connection.dialect.name == "sqlite":  # as it was built for years
            connection.connection.driver_connection.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, 999)
        [line] = read_lines(connection, PriceBook(read_prices(connection)), Period(0, 2000 * HOUR))
    assert line.rate_micros == 1900 % 977


def test_a_frozen_rate_outlives_the_price_book(ledger):
    price(ledger)
    write(ledger, row(NOV, rate_micros=7, currency="USD"), row(NOV, nano_gpu_hours=5))
    assert {(line.rate_micros, line.nano_gpu_hours) for line in read(ledger)} == {
        (7, 10**9),
        (2_000_000, 5),
    }

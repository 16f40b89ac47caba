"""Reports read sums of days where these are current, and the rows where they are not: always the same figures."""

import pytest
from sqlalchemy import func, select, update

from gateway.costs.cost_lines import DIMENSIONS, read_lines
from gateway.costs.periods import Period, month_of
from gateway.costs.prices.book import PriceBook
from gateway.costs.prices.price_store import read_prices
from gateway.costs.rollups.daily_sums import differing_sums, mark_unsummed, read_unsummed, sum_days
from gateway.metering.ledger.schema import daily_rollups, rollup_parts
from gateway.units import DAY, HOUR
from tests.support.ledger_rows import price, put
from tests.unit.gateway.costs.rolled import row, write

NOVEMBER = month_of("2026-11")
NOV = NOVEMBER.start // HOUR
LATER = NOVEMBER.end + 40 * DAY


def part(hour, name, **changes):
    return {**row(hour, **changes), "dimension": "key", "name": name}


@pytest.fixture
def month(ledger):
    """Three days of two tenants, of two engines, and a late correction of the month before."""
    price(ledger)
    rows = [
        row(NOV + 24 * day + hour, tenant=tenant, engine=engine, prompt_tokens=day + 1)
        for day in range(3)
        for hour in (0, 5, 23)
        for tenant, engine in (("acme", "gpu-a"), ("acme", "gpu-b"), ("bolt", "gpu-b"))
    ]
    late = row(NOV - 30, posted="2026-11", correction=True, prompt_tokens=-7, rate_micros=1_500_000)
    write(ledger, *rows, row(NOV + 1, bucket="idle"), late)
    put(ledger, rollup_parts, *(part(NOV + hour, "key-1", nano_gpu_hours=10**8) for hour in (0, 5, 30)))
    return ledger


def read(ledger, by=(), period=NOVEMBER, **options):
    with ledger.read() as connection:
        return list(read_lines(connection, PriceBook(read_prices(connection)), period, by, **options))


def days(ledger):
    with ledger.read() as connection:
        return read_unsummed(connection)


@pytest.mark.both_databases
@pytest.mark.parametrize(
    "period",
    [
        NOVEMBER,
        Period(NOVEMBER.start + DAY, NOVEMBER.end),
        Period(NOVEMBER.start + 5 * HOUR, NOVEMBER.start + DAY + 6 * HOUR),
        Period(NOVEMBER.start - 2 * DAY, NOVEMBER.start + DAY),
    ],
    ids=("month", "whole days", "parts of days", "as known now"),
)
def test_the_sums_of_days_are_those_of_the_rows(month, period):
    sum_days(month, LATER, seconds=60)
    assert days(month) == []
    for by in [(name,) for name in DIMENSIONS] + [("tenant", "day"), ("adapter", "key", "day")]:
        assert read(month, by, period) == read(month, by, period, summed=False), by
    assert read(month, ("tenant",), tenants=("bolt",)) == read(
        month, ("tenant",), tenants=("bolt",), summed=False
    )
    with month.read() as connection:
        assert differing_sums(connection, "2026-11") == 0
        summed = connection.execute(select(func.count()).select_from(daily_rollups)).scalar()
    assert summed == 2 * 3 + 2  # tenants and days; the idle hour, and the correction


def test_a_changed_day_is_read_from_its_rows_until_it_is_summed_again(month):
    sum_days(month, LATER, seconds=60)
    before = sum(line.requests for line in read(month))
    write(month, row(NOV + 25))
    assert days(month) == [NOVEMBER.start + DAY]
    assert sum(line.requests for line in read(month)) == before + 1
    sum_days(month, LATER, seconds=60)
    assert sum(line.requests for line in read(month)) == before + 1


def test_a_day_within_which_a_price_changes_is_priced_by_its_hours(month):
    sum_days(month, LATER, seconds=60)
    price(month, rate="3.00", valid_from=NOVEMBER.start + DAY + 4 * HOUR)
    rates = {line.rate_micros for line in read(month, corrections=False)}
    assert rates == {2_000_000, 3_000_000}
    assert read(month, ("day",)) == read(month, ("day",), summed=False)


def test_a_sum_that_was_changed_is_seen(month):
    sum_days(month, LATER, seconds=60)
    with month.write() as connection:
        connection.execute(update(daily_rollups).values(requests=daily_rollups.c.requests + 1))
    with month.read() as connection:
        assert differing_sums(connection, "2026-11") > 0
    with month.write() as connection:  # nobody reads those of unsummed days
        mark_unsummed(connection, [*range(NOVEMBER.start, NOVEMBER.end, DAY), NOVEMBER.start - 30 * HOUR])
    with month.read() as connection:
        assert differing_sums(connection, "2026-11") == 0


def test_a_sum_that_exceeds_64_bits_is_not_made(month):
    write(month, *(row(NOV, weight_input=2**62) for _ in range(2)))
    sum_days(month, LATER, seconds=60)
    assert days(month) == [NOVEMBER.start]
    assert sum(line.weight_input for line in read(month)) > 2**63

"""What budgets count a request as: by the tenant's card and its lines, or by what usage has cost."""

from __future__ import annotations

from fractions import Fraction

import pytest

from gateway.costs.price_list import PriceList
from gateway.costs.rollups.rollup import roll
from gateway.costs.selling.card_lines import CardLine, most_specific_first
from gateway.dataplane.request import Sold
from gateway.metering.ledger.ledger import Ledger
from gateway.tenants.limits.needs import TokenPrice
from gateway.units import HOUR, MICRO
from tests.support.ledger_rows import price
from tests.unit.gateway.costs.selling.cards import sell
from tests.unit.gateway.costs.selling.sold import OCTOBER, RATE, attempt, up

LINES = most_specific_first(
    (
        CardLine("large", 9, 9, 40, base_model="large", reasoning_micros=50, request_micros=7),
        CardLine("embed", 2, 2, 0, task="embed"),
        CardLine("l40s", 3, 3, 12, gpu_type="L40S"),
        CardLine("large-batch", 4, 4, 16, base_model="large", service_tier="batch"),
    )
)


def fill_ledger(ledger: Ledger) -> None:
    sell(
        ledger, "acme", input_micros=10, cached_micros=1, output_micros=30, batch_percent=50, lines=tuple(LINES)
    )  # fmt: skip  # one name a line says no more


@pytest.fixture
async def prices(ledger_with) -> PriceList:
    price_list = PriceList(ledger_with(fill_ledger), lambda: OCTOBER + HOUR)
    await price_list.refresh()
    return price_list


@pytest.mark.parametrize(
    ("sold", "gpu_type", "price"),
    [
        (Sold("acme/x", "small"), "H100", TokenPrice(10_000, 1_000, 30_000, 30_000)),
        (Sold("acme/x", "small", batch=True), "H100", TokenPrice(5_000, 500, 15_000, 15_000)),
        (Sold("acme/x", "small"), "L40S", TokenPrice(3_000, 3_000, 12_000, 12_000)),
        (Sold("acme/x", "large"), "L40S", TokenPrice(9_000, 9_000, 40_000, 50_000, 7_000)),
        (Sold("acme/x", "large", batch=True), "L40S", TokenPrice(4_000, 4_000, 16_000, 16_000)),
        (Sold("acme/x", "small"), None, TokenPrice(10_000, 10_000, 30_000, 30_000)),
        (Sold("acme/x", "small", task="embed"), "L40S", TokenPrice(2_000, 2_000, 0, 0)),
        (Sold("acme/x", "large"), None, TokenPrice(9_000, 9_000, 50_000, 50_000, 7_000)),
    ],
)
async def test_a_request_has_the_price_of_its_line(prices, sold, gpu_type, price):
    for _ in range(2):
        assert prices.of("acme", sold, gpu_type) == price


async def test_without_a_card_usage_is_estimated_at_what_it_has_cost(ledger_with):
    now = OCTOBER + 30 * HOUR

    def fill(ledger: Ledger) -> None:
        price(ledger, "H100", RATE)
        ledger.insert([attempt(f"r{n}", "bolt", OCTOBER + n) for n in range(3)])
        up(ledger, OCTOBER)
        roll(ledger, now)

    ledger = ledger_with(fill)
    prices = PriceList(ledger, lambda: now)
    await prices.refresh()
    assert prices.of("bolt", Sold("bolt/chat", "base"), None) is None, "nobody has needed it so far"
    await prices.refresh()
    known = prices.of("bolt", Sold("bolt/chat", "base"), "H100")
    assert known is not None
    counts = (3 * 12_345, 3 * 2_345, 3 * 678)
    spent = Fraction(known.cost(*counts, requests=3), 10**9)
    with ledger.read() as connection:
        nano = connection.exec_driver_sql(
            "SELECT sum(nano_gpu_hours) FROM rollups WHERE tenant = 'bolt'"
        ).scalar()
    cost = Fraction(nano, 10**9) * Fraction(RATE)
    assert cost <= spent <= cost + Fraction(sum(counts) * 2, MICRO**2), "rounded up to a millionth a million"
    assert prices.of("corgi", Sold("corgi/x", "new"), "H100") == known, "a model without usage: as all usage"

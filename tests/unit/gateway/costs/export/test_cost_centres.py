"""A customer's FOCUS file has its cost centres as tags, and the same sums."""

import json
from collections import defaultdict
from decimal import Decimal

import pytest

from gateway.costs.rollups.rollup import roll
from tests.support.ledger_rows import price
from tests.unit.gateway.costs.export.month import file_rows
from tests.unit.gateway.costs.selling.cards import sell
from tests.unit.gateway.costs.selling.sold import NOW, OCTOBER, attempt, up

CENTRES = ("sales", "care", None)


def fill_ledger(ledger):
    price(ledger, "H100", "2.718281")
    ledger.insert(
        [
            attempt(f"{n}-{tenant}", tenant, OCTOBER + n * 600_000_000, cost_centre=CENTRES[n % 3])
            for n in range(10)
            for tenant in ("acme", "bolt")
        ]
    )
    up(ledger, OCTOBER)
    sell(ledger, "acme", free_input=1_000)
    roll(ledger, NOW)


@pytest.fixture
def ledger(ledger_with):
    return ledger_with(fill_ledger)


@pytest.mark.parametrize("tenant", ["acme", "bolt"])
@pytest.mark.parametrize("granularity", ["hourly", "daily"])
def test_cost_centres_are_tags_and_sum_to_the_whole(ledger, tenant, granularity):
    mine = {"tenants": (tenant,), "customer": tenant, "granularity": granularity}
    requests, costs = defaultdict(int), defaultdict(Decimal)
    for row in file_rows(ledger, "focus-1.2", "chargeback", **mine):
        if row["ChargeCategory"] == "Usage" and row["x_Adapter"]:
            centre = json.loads(row["Tags"]).get("florin/cost_centre")
            requests[centre] += int(row["x_Requests"])
            costs[centre] += Decimal(row["BilledCost"])
            assert centre is None or "cost_centre" not in row["SkuPriceId"]
    assert requests == {"sales": 4, "care": 3, None: 3}
    if tenant == "acme":
        each = (Decimal("0.60") * 10_000 + Decimal("0.06") * 2_345 + Decimal("2.40") * 678) / 10**6
        assert costs == {"sales": 4 * each, "care": 3 * each, None: 3 * each}

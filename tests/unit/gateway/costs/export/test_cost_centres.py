"""A customer's FOCUS file has its cost centres as tags, and the same sums."""

import csv
import io
import json
from collections import defaultdict
from decimal import Decimal

import pytest

from gateway.costs.export.files import Order, write
from gateway.costs.prices.price_store import add_price
from gateway.costs.rollups.rollup import roll
from gateway.metering.ledger.ledger import Ledger
from tests.unit.gateway.costs.selling.cards import sell
from tests.unit.gateway.costs.selling.sold import NOW, OCTOBER, attempt, up

CENTRES = ("sales", "care", None)


@pytest.fixture
def ledger(tmp_path):
    made = Ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
    add_price(
        made, gpu_type="H100", rate="2.718281", currency="USD", purchase="on_demand", region="", valid_from=0,
        valid_to=None, now=0,
    )  # fmt: skip  # as the call reads
    made.insert(
        [
            attempt(f"{n}-{tenant}", tenant, OCTOBER + n * 600_000_000, cost_centre=CENTRES[n % 3])
            for n in range(10)
            for tenant in ("acme", "bolt")
        ]
    )
    up(made, OCTOBER)
    sell(made, "acme", free_input=1_000)
    roll(made, NOW)
    yield made
    made.close()


@pytest.mark.parametrize("tenant", ["acme", "bolt"])
@pytest.mark.parametrize("granularity", ["hourly", "daily"])
def test_cost_centres_are_tags_and_sum_to_the_whole(ledger, tenant, granularity):
    file = io.BytesIO()
    order = Order(
        "2026-10", "focus-1.2", "chargeback", "x", tenants=(tenant,), granularity=granularity, customer=tenant
    )
    with ledger.read() as connection:
        write(connection, order, file)
    requests, costs = defaultdict(int), defaultdict(Decimal)
    for row in csv.DictReader(io.StringIO(file.getvalue().decode())):
        if row["ChargeCategory"] == "Usage" and row["x_Adapter"]:
            centre = json.loads(row["Tags"]).get("florin/cost_centre")
            requests[centre] += int(row["x_Requests"])
            costs[centre] += Decimal(row["BilledCost"])
            assert centre is None or "cost_centre" not in row["SkuPriceId"]
    assert requests == {"sales": 4, "care": 3, None: 3}
    if tenant == "acme":
        each = (Decimal("0.60") * 10_000 + Decimal("0.06") * 2_345 + Decimal("2.40") * 678) / 10**6
        assert costs == {"sales": 4 * each, "care": 3 * each, None: 3 * each}

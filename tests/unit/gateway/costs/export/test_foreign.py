"""Files for Vantage and CloudZero: the columns and values that their documentation names, and that they sum to
the FOCUS file."""

from __future__ import annotations

import json
import re

import pytest

from tests.unit.gateway.costs.export.month import file_rows, fill, total

VANTAGE = {"ChargeCategory", "ChargePeriodStart", "BilledCost", "ServiceName"}
"""Required: https://docs.vantage.sh/connecting_custom_providers"""
VANTAGE_TAKES = VANTAGE | {
    *("BillingCurrency", "ChargePeriodEnd", "ConsumedQuantity", "ConsumedUnit", "RegionId", "ResourceId"),
    *("ResourceType", "ServiceCategory", "Tags"),
}
CBF = {
    *("lineitem/id", "lineitem/type", "lineitem/description", "time/usage_start", "time/usage_end"),
    *("resource/id", "resource/service", "resource/account", "resource/region", "resource/usage_family"),
    *("action/operation", "action/usage_type", "usage/amount", "usage/units", "cost/cost"),
    *("cost/discounted_cost", "cost/amortized_cost", "cost/on_demand_cost", "bill/invoice_id"),
}
"""https://docs.cloudzero.com/docs/anycost-common-bill-format-cbf"""


@pytest.fixture
def filled(ledger_with):
    return ledger_with(fill)


def made(ledger, kind, dataset="chargeback", granularity="daily"):
    return file_rows(ledger, kind, dataset, granularity=granularity)


@pytest.mark.parametrize("granularity", ["daily", "hourly"])
@pytest.mark.parametrize("dataset", ["chargeback", "infrastructure"])
def test_they_sum_to_the_focus_file(filled, dataset, granularity):
    focus = made(filled, "focus-1.2", dataset, granularity)
    vantage = made(filled, "vantage", dataset, granularity)
    cloudzero = made(filled, "cloudzero", dataset, granularity)
    assert len(focus) == len(vantage) == len(cloudzero) > 10
    assert total(vantage, "BilledCost") == total(cloudzero, "cost/cost") == total(focus, "BilledCost")
    assert total(cloudzero, "cost/amortized_cost") == total(focus, "EffectiveCost")
    assert total(cloudzero, "cost/on_demand_cost") == total(focus, "ListCost")


def test_vantage_finds_what_it_requires(filled):
    rows = made(filled, "vantage")
    assert VANTAGE <= rows[0].keys() <= VANTAGE_TAKES
    for row in rows:
        assert all(row[name] for name in VANTAGE)
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", row["ChargePeriodStart"])
        assert row["ChargeCategory"] in {"Credit", "Refund", "Discount", "Tax", "Usage"}
        assert all(isinstance(value, str) for value in json.loads(row["Tags"]).values())


def test_cloudzero_finds_what_it_requires(filled):
    rows = made(filled, "cloudzero")
    tags = {name for name in rows[0] if name.startswith("resource/tag:")}
    assert rows[0].keys() - tags <= CBF
    for row in rows:
        assert row["resource/id"], "required with tags"
        assert row["resource/account"]
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:00:00Z", row["time/usage_start"])
        assert row["lineitem/type"] in {"Usage", "Discount"}
    assert {row["resource/tag:tenant"] for row in rows} >= {"acme", "bolt"}

"""FOCUS files against our own table of the specification, and against the ledger to the last unit."""

from __future__ import annotations

import functools
import json
import re
from collections import defaultdict
from decimal import Decimal

import pytest

from gateway.costs.export.columns import FOCUS_VERSIONS, focus
from gateway.costs.export.files import MissingPriceError
from gateway.costs.periods import month_of
from gateway.metering.ledger.ledger import Ledger
from tests.support.empty_ledgers import put_sqlite
from tests.support.ledger_rows import price
from tests.unit.gateway.costs.export.focus_spec import OURS, OURS_1_4, SPECIFICATION
from tests.unit.gateway.costs.export.month import add_prices, file_rows, fill, make, total
from tests.unit.gateway.costs.rolled import write

KINDS = {
    "Decimal": {"cost", "quantity", "price"},
    "String": {"text"},
    "Date/Time": {"time"},
    "JSON": {"json"},
}
DECIMAL = re.compile(r"-?(0|[1-9]\d*)\.\d{1,21}")
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:00:00Z")
NANO = Decimal(10) ** -9
COST_DATASETS = ("infrastructure", "chargeback")
LEDGER_ROWS = make(hours=6, seed=7)
"""What `fill` writes."""


@pytest.fixture(scope="module")
def month_rows(tmp_path_factory):
    """A function that gives a file of the month as rows: each file is written once."""
    ledger = Ledger(f"sqlite:///{put_sqlite(tmp_path_factory.mktemp('month') / 'ledger.db', fill)}")
    yield functools.cache(functools.partial(rows_of, ledger))
    ledger.close()


@pytest.fixture
def filled(ledger_with):
    return ledger_with(fill)


def rows_of(ledger, version, dataset, **options) -> list[dict[str, str]]:
    return file_rows(ledger, f"focus-{version}", dataset, **options)


def true_cost(row) -> Decimal:
    rates = {"H100": {"eu": 3_249_999, "us": 1_100_000}, "L40S": {"": 875_000}}
    rate = row["rate_micros"] if row["rate_micros"] is not None else rates[row["gpu_type"]][row["region"]]
    return Decimal(row["nano_gpu_hours"] * rate).scaleb(-15)


@pytest.mark.parametrize("version", FOCUS_VERSIONS)
class TestColumns:
    def test_every_column_that_the_specification_asks_for_is_there(self, version):
        required = {name for name, spec in SPECIFICATION[version].items() if spec.level == "Mandatory"} | OURS
        required |= OURS_1_4 if version == "1.4" else set()
        assert not required - {column.name for column in focus(version)}

    def test_each_is_of_the_specification_or_marked_as_our_own(self, version):
        for column in focus(version):
            if column.name.startswith("x_"):
                assert re.fullmatch(r"x_([A-Z][a-z]+)+", column.name)
                continue
            spec = SPECIFICATION[version][column.name]
            assert column.kind in KINDS[spec.kind]
            assert spec.nullable or not column.nullable
            assert not spec.values or column.values <= spec.values


@pytest.mark.parametrize("dataset", COST_DATASETS)
@pytest.mark.parametrize("version", FOCUS_VERSIONS)
class TestCells:
    def test_types_nullability_and_allowed_values(self, month_rows, version, dataset):
        rows = month_rows(version, dataset)
        assert len(rows) > 100
        for row in rows:
            for column in focus(version):
                cell = row[column.name]
                if not cell:
                    assert column.nullable, column.name
                    continue
                assert not column.values or cell in column.values
                match column.kind:
                    case "cost" | "quantity" | "price":
                        assert DECIMAL.fullmatch(cell), (column.name, cell)
                    case "time":
                        assert TIME.fullmatch(cell)
                    case "json":
                        assert isinstance(json.loads(cell), dict)
                    case "integer":
                        int(cell)
        assert {row["BillingAccountName"] for row in rows} == {"Nordlicht GmbH"}

    def test_price_times_quantity_is_the_cost(self, month_rows, version, dataset):
        for row in month_rows(version, dataset):
            for unit_price, cost in (
                ("ListUnitPrice", "ListCost"),
                ("ContractedUnitPrice", "ContractedCost"),
            ):
                assert Decimal(row[unit_price]) >= 0
                assert Decimal(row[unit_price]) * Decimal(row["PricingQuantity"]) == Decimal(row[cost])

    def test_a_price_id_has_one_list_price(self, month_rows, version, dataset):
        prices = defaultdict(set)
        for row in month_rows(version, dataset):
            prices[row["SkuPriceId"]].add((row["SkuId"], row["ListUnitPrice"]))
        assert {len(found) for found in prices.values()} == {1}

    def test_reserved_capacity_is_a_commitment_discount(self, month_rows, version, dataset):
        rows = month_rows(version, dataset)
        names = [column.name for column in focus(version) if column.name.startswith("CommitmentDiscount")]
        assert len(names) == 7
        for row in rows:
            reserved = row["PricingCategory"] == "Committed"
            assert [bool(row[name]) for name in names] == [reserved] * 7
            if reserved:
                assert row["CommitmentDiscountId"] == "reserved/L40S/any"
                assert row["CommitmentDiscountQuantity"] == row["PricingQuantity"]

    def test_days_sum_to_the_same(self, month_rows, version, dataset):
        hourly = month_rows(version, dataset)
        daily = month_rows(version, dataset, granularity="daily")
        assert len(daily) < len(hourly)
        costs = ("BilledCost", "ListCost", "ContractedCost")
        for column in (*costs, "PricingQuantity", "x_OutputTokens", "x_Requests"):
            assert total(daily, column) == total(hourly, column)
        days = {row["ChargePeriodStart"] for row in daily}
        assert days <= {"2026-09-30T00:00:00Z", "2026-09-01T00:00:00Z", "2026-10-01T00:00:00Z"}
        for row in daily:
            assert row["ChargePeriodStart"].endswith("T00:00:00Z")
            assert row["ChargePeriodEnd"].endswith("T00:00:00Z")

    def test_periods(self, month_rows, version, dataset):
        for row in month_rows(version, dataset):
            assert row["BillingPeriodStart"] == "2026-10-01T00:00:00Z"
            assert row["BillingPeriodEnd"] == "2026-11-01T00:00:00Z"
            earlier = row["ChargePeriodStart"] < row["BillingPeriodStart"]
            assert (row["ChargeClass"] == "Correction") == earlier
            assert row["ChargePeriodStart"] < row["ChargePeriodEnd"]


@pytest.mark.parametrize("version", FOCUS_VERSIONS)
class TestSums:
    def test_infrastructure_is_gpu_hours_times_rate(self, month_rows, version):
        rows = month_rows(version, "infrastructure")
        counted = [row for row in LEDGER_ROWS if row["bucket"] != "rejected"]
        assert total(rows) == sum(map(true_cost, counted))
        assert total(rows, "PricingQuantity") == sum(row["nano_gpu_hours"] for row in counted) * NANO
        for name in ("ListCost", "EffectiveCost", "ContractedCost"):
            assert total(rows, name) == total(rows)  # there is no on-demand price beside spot and reserved

    def test_chargeback_is_the_infrastructure(self, month_rows, version):
        """Also retries and unused time, which it used to leave out."""
        infrastructure = month_rows(version, "infrastructure")
        charged = month_rows(version, "chargeback")
        for column in ("BilledCost", "EffectiveCost", "ListCost", "ContractedCost", "PricingQuantity"):
            assert total(charged, column) == total(infrastructure, column)
        rest = [row for row in infrastructure if row["x_Bucket"] != "usage"]
        assert {row["x_Bucket"] for row in rest} == {"idle", "startup", "headroom", "retry_waste"}
        nobodys = [row for row in charged if not row["SubAccountId"]]
        assert total(nobodys) == total(rest)
        assert {row["x_Bucket"] for row in nobodys} == {"unallocated", "retry_waste"}
        for tenant in ("acme", "bolt", "corgi", "delta"):
            own = [r for r in LEDGER_ROWS if r["tenant"] == tenant and r["bucket"] == "usage"]
            mine = [row for row in charged if row["SubAccountId"] == tenant]
            assert total(mine) == sum(map(true_cost, own))
            for column, name in (
                ("x_OutputTokens", "completion_tokens"),
                ("x_CachedTokens", "cached_tokens"),
            ):
                assert sum(int(row[column]) for row in mine) == sum(row[name] for row in own)
            prompts = sum(row["prompt_tokens"] - row["cached_tokens"] for row in own)
            assert sum(int(row["x_InputTokens"]) for row in mine) == prompts
            assert sum(int(row["x_Requests"]) for row in mine) == sum(row["requests"] for row in own)


def test_the_split_of_an_origin_charge_follows_the_specification(month_rows):
    """Same dimensions and unit prices within it, ratios that sum to 1, nothing allocated where nobody used."""
    origins = defaultdict(list)
    for row in month_rows("1.4", "infrastructure"):
        key = (row["ResourceId"], row["ChargePeriodStart"], row["ListUnitPrice"], row["ChargeClass"])
        origins[key].append(row)
    measures = {
        *("ConsumedQuantity", "PricingQuantity", "CommitmentDiscountQuantity"),
        *("BilledCost", "EffectiveCost", "ListCost", "ContractedCost"),
    }
    for rows in origins.values():
        for name in rows[0]:
            if not name.startswith(("x_", "Allocated")) and name not in measures:
                assert len({row[name] for row in rows}) == 1, name
        ratios = [json.loads(r["AllocatedMethodDetails"], parse_float=Decimal) for r in rows]
        assert sum(e["AllocatedRatio"] for r in ratios for e in r["Elements"]) == 1
        names = [row["AllocatedResourceId"] for row in rows if row["AllocatedResourceId"]]
        assert len(names) == len(set(names))
        for row in rows:
            nobody = row["x_Bucket"] in {"idle", "startup", "headroom"}
            assert bool(row["AllocatedResourceId"]) != nobody
            assert bool(row["AllocatedTags"]) != nobody
            assert row["AllocatedMethodId"]
            assert not row["SubAccountId"]
    assert len(origins) > 15


def test_savings_show_against_the_on_demand_price(filled):
    """A spot price is a contracted one; a reserved one saves by commitment."""
    price(filled, "H100", "3.50", currency="EUR", region="us")
    price(filled, "L40S", "1.25", currency="EUR")
    prices = {"Dynamic": ("3.50", "1.10", "1.10"), "Committed": ("1.25", "1.25", "0.875")}
    for dataset in COST_DATASETS:
        rows = [r for r in rows_of(filled, "1.2", dataset) if r["PricingCategory"] in prices]
        assert {row["PricingCategory"] for row in rows} == set(prices)
        for row in rows:
            listed, contracted, paid = prices[row["PricingCategory"]]
            assert (row["ListUnitPrice"], row["ContractedUnitPrice"]) == (listed, contracted)
            hours = Decimal(row["PricingQuantity"])
            assert Decimal(row["EffectiveCost"]) == Decimal(row["BilledCost"]) == hours * Decimal(paid)


def test_infrastructure_names_the_tenant_where_focus_knows_no_split_charges(month_rows):
    rows = month_rows("1.2", "infrastructure")
    for row in rows:
        assert row["SubAccountId"] == row["SubAccountName"] == row["x_Tenant"]
        tags = json.loads(row["Tags"])
        assert tags.get("florin/tenant", "") == row["x_Tenant"]
        assert tags.get("florin/adapter", "") == row["x_Adapter"]
    assert {"", "acme", "bolt", "corgi", "delta"} == {row["SubAccountId"] for row in rows}
    assert all(
        "florin/tenant" in row["Tags"] for row in month_rows("1.2", "chargeback") if row["SubAccountId"]
    )


@pytest.mark.parametrize("version", FOCUS_VERSIONS)
def test_a_tenant_s_own_file_does_not_tell_what_a_gpu_hour_costs(month_rows, filled, version):
    mine = {"tenants": ("acme",), "customer": "acme"}
    rows = month_rows(version, "chargeback", **mine)
    full = month_rows(version, "chargeback", tenants=("acme",))
    assert total(rows) == total(full)
    shown = json.dumps(rows)
    for word in ("GPU-Hours", "x_GpuHours", "gpu-0", "3.249999", "CommitmentDiscountId"):
        assert word not in shown, word
    for row in rows:
        assert not any(value for name, value in row.items() if name.endswith("UnitPrice"))
        assert row["ListCost"] == row["ContractedCost"] == row["EffectiveCost"] == row["BilledCost"]
        if row["ConsumedUnit"] == "Tokens":
            assert row["PricingUnit"] == "1000000 Tokens"
            assert Decimal(row["ConsumedQuantity"]) == Decimal(row["PricingQuantity"]) * 1_000_000
    names = file_rows(filled, "csv", "chargeback", **mine)[0].keys()
    assert "cost" in names
    assert not {"gpu_hours", "rate_per_gpu_hour"} & names


def test_without_a_price_the_export_is_refused_with_its_name(ledger_with):
    ledger = ledger_with(add_prices)
    strange = {"gpu_type": "B200", "region": "eu", "purchase": "spot"}
    write(ledger, *make(hours=1, seed=1), {**make(hours=1, seed=1)[0], **strange})
    with pytest.raises(MissingPriceError, match=r"B200 \(spot, eu\) during 2026-10"):
        rows_of(ledger, "1.2", "infrastructure")


def test_what_a_spreadsheet_would_run_is_text(ledger_with):
    ledger = ledger_with(add_prices)
    hostile = {"region": "=cmd|' /C calc'!A0", "rate_micros": 1, "base_model": "+1+1", "adapter": ""}
    write(ledger, {**make(hours=1, seed=1)[0], **hostile})
    [row] = [r for r in rows_of(ledger, "1.2", "chargeback") if r["SkuMeter"] == "Input Tokens"]
    assert row["RegionId"] == "'=cmd|' /C calc'!A0"
    assert row["ResourceId"] == "'+1+1"
    assert not any(cell.startswith(("=", "+", "@")) for cell in row.values())


def test_the_file_is_the_month_asked_for(month_rows, filled):
    november = {"posted": "2026-11", "hour": month_of("2026-11").start, "piece": month_of("2026-11").start}
    write(filled, {**LEDGER_ROWS[0], **november})
    assert rows_of(filled, "1.2", "infrastructure") == month_rows("1.2", "infrastructure")

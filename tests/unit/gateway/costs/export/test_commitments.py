"""Commitments in FOCUS files: billed when bought, their cost spread over what they cover and the unused rest."""

from collections import defaultdict
from decimal import Decimal

import pytest

from gateway.costs.closing.closing import close
from gateway.costs.commitments.commitment_store import add_commitment, withdraw_commitment
from gateway.costs.export.columns import FOCUS_VERSIONS
from gateway.costs.periods import month_of
from gateway.units import HOUR
from tests.support.ledger_rows import price
from tests.unit.gateway.costs.export.month import FIRST, MONTH, file_rows, fill, total

END = month_of(MONTH).end
COSTS = ("BilledCost", "EffectiveCost")

COST_DATASETS = ("infrastructure", "chargeback")


def fill_ledger(ledger):
    fill(ledger)
    price(ledger, "L40S", "1.25", currency="EUR")


@pytest.fixture
def ledger(ledger_with):
    return ledger_with(fill_ledger)


def commit(ledger, **changes):
    made, _ = add_commitment(
        ledger,
        **{
            "gpu_type": "L40S", "region": "", "gpus": 1, "valid_from": FIRST, "valid_to": END, "rate": "0.50",
            "upfront": "100.01", "currency": "EUR", "description": "ri-7", "now": 2, "by": "k", **changes,
        },
    )  # fmt: skip  # a row
    return made["id"]


def rows_of(ledger, dataset="infrastructure", version="1.2", **options):
    return file_rows(ledger, f"focus-{version}", dataset, **options)


def at_close(ledger):
    close(ledger, MONTH, now=END + 2 * HOUR, by="k", force=True)


@pytest.mark.parametrize("granularity", ["hourly", "daily"])
@pytest.mark.parametrize("version", FOCUS_VERSIONS)
def test_over_its_term_the_effective_cost_is_what_was_billed(ledger, version, granularity):
    """Two that begin and end within an hour; engines use one and a part of the other."""
    half = HOUR // 2
    numbers = [commit(ledger), commit(ledger, gpus=3, valid_from=FIRST + half, valid_to=END - half)]
    at_close(ledger)
    rows = rows_of(ledger, version=version, granularity=granularity)
    by = defaultdict(list)
    for row in rows:
        by[row["CommitmentDiscountId"]].append(row)
    assert {f"commitment/{number}" for number in numbers} <= by.keys()
    for number, gpus, hours in ((numbers[0], 1, 744), (numbers[1], 3, 743)):
        mine = by[f"commitment/{number}"]
        bought = [row for row in mine if row["ChargeCategory"] == "Purchase"]
        used = [row for row in mine if row["CommitmentDiscountStatus"] == "Used"]
        unused = [row for row in mine if row["CommitmentDiscountStatus"] == "Unused"]
        assert len(mine) == len(bought) + len(used) + len(unused)
        assert {row["ChargeFrequency"] for row in bought} == {"Recurring", "One-Time"}
        assert total(bought, "BilledCost") == Decimal("0.50") * gpus * hours + Decimal("100.01")
        assert total(bought, "EffectiveCost") == 0
        assert total([*used, *unused], "EffectiveCost") == total(bought, "BilledCost")
        assert total([*used, *unused], "BilledCost") == 0
        assert total([*used, *unused], "CommitmentDiscountQuantity") == gpus * hours
        assert total(used, "PricingQuantity") > 0
        for row in unused:
            assert (row["ConsumedQuantity"], row["ConsumedUnit"], row["ListCost"]) == ("", "", "0.00")
    for row in rows:
        for unit_price, cost in (("ListUnitPrice", "ListCost"), ("ContractedUnitPrice", "ContractedCost")):
            assert Decimal(row[unit_price]) * Decimal(row["PricingQuantity"]) == Decimal(row[cost])


@pytest.mark.parametrize("version", FOCUS_VERSIONS)
def test_nothing_is_lost_and_the_two_datasets_agree(ledger, version):
    before = rows_of(ledger, version=version)
    commit(ledger, region="", gpus=2)
    commit(ledger, gpu_type="B200", rate="3", upfront="0")
    at_close(ledger)
    infrastructure, charged = (rows_of(ledger, dataset, version) for dataset in COST_DATASETS)
    for column in COSTS:
        assert total(charged, column) == total(infrastructure, column)
    for column in ("PricingQuantity", "x_OutputTokens", "x_Requests", "x_GpuHours", "ListCost"):
        used = [row for row in infrastructure if row["ResourceType"] == "GPU Engine"]
        assert total(used, column) == total(before, column), column
    nobodys = [row for row in charged if row["ChargeCategory"] == "Adjustment"]
    assert len(nobodys) == 2
    assert not any(row["SubAccountId"] for row in nobodys)
    # What tenants are charged is the price book's, with or without commitments.
    for tenant in ("acme", "bolt"):
        mine = rows_of(ledger, "chargeback", version, tenants=(tenant,))
        earlier = [row for row in before if tenant in (row["SubAccountId"], row["x_Tenant"])]
        assert total(mine) == total(row for row in earlier if row["x_Bucket"] != "retry_waste")


def test_files_of_a_closed_month_never_change(ledger):
    first = commit(ledger)
    at_close(ledger)
    before = [rows_of(ledger, dataset) for dataset in COST_DATASETS]
    commit(ledger, gpus=5, now=END + 3 * HOUR)
    withdraw_commitment(ledger, first, reason="wrong", now=END + 4 * HOUR, by="k")
    assert [rows_of(ledger, dataset) for dataset in COST_DATASETS] == before


def test_a_withdrawn_one_has_no_rows(ledger):
    before = rows_of(ledger)
    withdraw_commitment(ledger, commit(ledger), reason="wrong", now=3, by="k")
    assert rows_of(ledger) == before


def test_an_open_month_is_counted_up_to_its_last_hour(ledger):
    commit(ledger)
    rows = [row for row in rows_of(ledger) if row["CommitmentDiscountId"].startswith("commitment/")]
    assert total([r for r in rows if r["ChargeFrequency"] == "Recurring"], "PricingQuantity") == 6

"""The Contract Commitment dataset, against our own table of the specification."""

from __future__ import annotations

import csv
import json
from decimal import Decimal

import pytest

from gateway.costs.commitments.commitment_store import add_commitment, withdraw_commitment
from gateway.costs.export.contract_commitments import COLUMNS, export_commitments
from gateway.costs.export.files import Order
from gateway.costs.periods import instant
from tests.unit.gateway.costs.export.focus_spec import CONTRACT_COMMITMENT
from tests.unit.gateway.costs.export.month import FIRST, MONTH

KINDS = {"Decimal": {"cost", "quantity"}, "String": {"text"}, "Date/Time": {"time"}, "JSON": {"json"}}
INAPPLICABLE = {"PricingCurrency", "PricingCurrencyContractCommitmentCost"}


def commit(ledger, start, end, **changes):
    terms = {
        "gpu_type": "L40S", "region": "", "gpus": 2, "rate": "0.50", "upfront": "0", "currency": "EUR",
        "description": "", "now": 2_000_000, "by": "k", **changes,
    }  # fmt: skip  # one name a line says no more
    return add_commitment(ledger, valid_from=instant("from", start), valid_to=instant("to", end), **terms)[0][
        "id"
    ]


@pytest.fixture
def rows_of(ledger_with, tmp_path):
    """A function that gives the file of the month, after `commitments` were added."""

    def rows(commitments, now=FIRST):
        ledger = ledger_with()
        for terms in commitments:
            commit(ledger, *terms[:2], **terms[2])
        path = tmp_path / "commitments.csv"
        path.touch()
        export_commitments(
            ledger, Order(MONTH, "focus-1.4", "commitments", "Nordlicht", now=now), path, 10**6
        )
        with path.open(newline="") as file:
            return list(csv.DictReader(file))

    return rows


def test_columns_are_those_of_the_specification():
    assert {column.name for column in COLUMNS} == CONTRACT_COMMITMENT.keys() - INAPPLICABLE
    for column in COLUMNS:
        spec = CONTRACT_COMMITMENT[column.name]
        assert column.kind in KINDS[spec.kind]
        assert spec.nullable or not column.nullable
        assert not spec.values or column.values <= spec.values


def test_a_row_is_what_was_agreed(rows_of):
    [row] = rows_of(
        [("2026-10-01", "2027-10-01", {"upfront": "4380", "region": "eu", "description": "ri-7"})]
    )
    for column in COLUMNS:
        assert row[column.name] or column.nullable
        assert not column.values or row[column.name] in column.values
    terms = {name.removeprefix("ContractCommitment"): value for name, value in row.items()}
    assert (terms["Id"], terms["ContractId"]) == ("commitment/1", "commitment/1")
    assert (terms["PeriodStart"], terms["PeriodEnd"]) == ("2026-10-01T00:00:00Z", "2027-10-01T00:00:00Z")
    assert (Decimal(terms["Quantity"]), terms["Unit"]) == (2 * 365 * 24, "GPU-Hours")
    assert Decimal(terms["Cost"]) == 2 * 365 * 24 * Decimal("0.5") + 4380
    assert (terms["PaymentModel"], terms["PaymentInterval"]) == ("Partial Upfront", "Monthly")
    assert Decimal(terms["PaymentUpfrontPercentage"]) == Decimal("0.333333333")
    assert (terms["DurationType"], terms["LifecycleStatus"]) == ("1 Year", "Active")
    assert terms["DiscountPercentage"] == "", "as its benefit is that the GPUs are there"
    assert json.loads(terms["Applicability"])["Inclusions"] == [
        {"Dimension": "PricingCategory", "Operator": "In", "Values": ["Committed"]},
        {"Dimension": "x_GpuType", "Operator": "In", "Values": ["L40S"]},
        {"Dimension": "RegionId", "Operator": "In", "Values": ["eu"]},
    ]


def test_only_those_of_the_month_as_they_are_now(ledger_with, tmp_path):
    ledger = ledger_with()
    commit(ledger, "2026-09-01", "2026-10-01")
    commit(ledger, "2026-11-01", "2026-12-01")
    for gpus in (1, 2, 3):
        commit(ledger, "2026-10-05", "2026-10-09", gpus=gpus)
    withdraw_commitment(ledger, 4, reason="wrong", now=3_000_000, by="k")
    path = tmp_path / "commitments.csv"
    statuses = {}
    for now in ("2026-10-01", "2026-10-05", "2026-10-09"):
        path.write_text("")
        order = Order(MONTH, "focus-1.4", "commitments", "x", now=instant("now", now))
        export_commitments(ledger, order, path, 10**6)
        with path.open(newline="") as file:
            statuses[now] = {
                row["ContractCommitmentId"]: row["ContractCommitmentLifecycleStatus"]
                for row in csv.DictReader(file)
            }
    assert [status["commitment/3"] for status in statuses.values()] == ["Pending", "Active", "Expired"]
    assert {status["commitment/4"] for status in statuses.values()} == {"Canceled"}
    assert all(
        status.keys() == {"commitment/3", "commitment/4", "commitment/5"} for status in statuses.values()
    )


def test_how_it_is_paid(rows_of):
    rows = rows_of(
        [
            ("2026-10-01", "2026-11-01", {"upfront": "9", "rate": "0"}),
            ("2026-10-01", "2026-11-01", {}),
            ("2026-10-01", "2026-11-01", {"upfront": "0.000001"}),
        ]
    )
    names = ("PaymentModel", "PaymentInterval", "PaymentUpfrontPercentage")
    assert [tuple(row[f"ContractCommitment{name}"] for name in names) for row in rows] == [
        ("All Upfront", "One-Time", "1.00"),
        ("No Upfront", "Monthly", "0.00"),
        ("Partial Upfront", "Monthly", "0.000000001"),
    ]

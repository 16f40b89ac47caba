"""The FOCUS project's own validator over our exports, where a Python is at hand that it runs on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from deploy.focus.validate import TENANT_CRITERIA, ValidatorUnavailableError, build, validate
from gateway.costs.export.files import Order, export
from gateway.metering.ledger.ledger import Ledger
from tests.support.missing import missing
from tests.unit.gateway.costs.export.month import MONTH, fill

INVOICE = "InvoiceId-C-005-C"
"""It wants every charge to have an invoice; InvoiceId-C-004-C wants none to have one. One of them always
fails, whatever the file says."""
STATUS = [f"CommitmentDiscountStatus-{rule}" for rule in ("C-000-C", "C-002-C", "C-004-C")]
"""The last, and the two that include it, want a status where there is no commitment discount, against their
own words and against C-003-C, which wants none there. They fail for every file with a row outside of a
commitment."""


@pytest.fixture(scope="module")
def environment() -> Path:
    try:
        return build()
    except ValidatorUnavailableError as error:
        missing(error)


@pytest.fixture
def exported(tmp_path):
    ledger = Ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
    fill(ledger)

    def to_file(dataset: str, **options: Any) -> Path:
        path = tmp_path / f"{dataset}.csv"
        path.touch()
        export(ledger, Order(MONTH, "focus-1.2", dataset, "Nordlicht GmbH", **options), path)
        return path

    yield to_file
    ledger.close()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("dataset", ["infrastructure", "chargeback"])
def test_validator_finds_only_its_own_contradiction(environment, exported, dataset):
    report = validate(exported(dataset), environment=environment)
    assert [line.split(" ")[0] for line in report.failed] == [*STATUS, INVOICE]
    assert report.passed > 300


@pytest.mark.timeout(600)
def test_a_tenant_s_own_file_is_valid_without_unit_prices(environment, exported):
    path = exported("chargeback", tenants=("acme",), customer="acme", granularity="daily")
    report = validate(path, environment=environment, criteria=TENANT_CRITERIA)
    assert [line.split(" ")[0] for line in report.failed] == [INVOICE]


@pytest.mark.timeout(600)
def test_validator_detects_errors(environment, exported):
    """Or else the test above could not fail. (It does not multiply prices by quantities where ChargeClass is
    null, nor look at PricingCategory's values; tests of our own do.)"""
    path = exported("infrastructure")
    path.write_text(path.read_text().replace("Usage-Based", "Sometimes").replace(",EUR,", ",,"))
    failed = {line.split(" ")[0] for line in validate(path, environment=environment).failed}
    assert {"ChargeFrequency-C-003-M", "BillingCurrency-C-004-M"} <= failed

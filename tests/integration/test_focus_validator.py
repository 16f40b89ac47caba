"""The FOCUS project's own validator over our exports, where a Python is at hand that it runs on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from deploy.focus.validate import TENANT_CRITERIA, ValidatorUnavailableError, build, validate
from gateway.costs.commitments.commitment_store import add_commitment
from gateway.costs.export.files import Order, export
from gateway.metering.ledger.ledger import Ledger
from gateway.units import HOUR
from tests.support.forms import some_of
from tests.support.missing import missing
from tests.unit.gateway.costs.export.month import FIRST, MONTH, fill
from tests.unit.gateway.costs.selling.cards import sell
from tests.unit.gateway.costs.selling.test_residency import stay

INVOICE = "InvoiceId-C-005-C"
"""It wants every charge to have an invoice; InvoiceId-C-004-C wants none to have one. One of them always
fails, whatever the file says."""
STATUS = [f"CommitmentDiscountStatus-{rule}" for rule in ("C-000-C", "C-002-C", "C-004-C")]
"""The last, and the two that include it, want a status where there is no commitment discount, against their
own words and against C-003-C, which wants none there. They fail for every file with a row outside of a
commitment."""

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def environment() -> Path:
    try:
        return build()
    except ValidatorUnavailableError as error:
        missing(error)


@pytest.fixture
def exported(tmp_path):
    ledger = Ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
    fill(ledger, hours=2)  # each rule is asked of each row

    def to_file(dataset: str, *, commitments: bool = False, card: bool = False, **options: Any) -> Path:
        if commitments:
            add_commitment(
                ledger, gpu_type="L40S", region="", gpus=9, valid_from=FIRST, valid_to=FIRST + 9 * HOUR,
                rate="0.50", upfront="100.01", currency="EUR", description="ri-7", now=2, by="k",
            )  # fmt: skip  # as the call reads
        if card:
            sell(
                ledger,
                "acme",
                currency="EUR",
                free_input=10**6,
                minimum_micros=10**12,
                residency_micros=10**4,
            )
            stay(ledger, "acme/support@v3", FIRST, FIRST + 5 * HOUR)
        path = tmp_path / f"{dataset}.csv"
        path.touch()
        export(ledger, Order(MONTH, "focus-1.2", dataset, "Nordlicht GmbH", **options), path)
        return path

    yield to_file
    ledger.close()


@pytest.mark.parametrize("rows", some_of(["with commitments", "usage alone"], "with commitments"))
@pytest.mark.parametrize("dataset", some_of(["infrastructure", "chargeback"], "infrastructure"))
def test_validator_finds_only_its_own_contradiction(environment, exported, dataset, rows):
    """With commitments, a file has all rows that it has without, and purchases and unused capacity besides."""
    commitments = rows == "with commitments"
    path = exported(dataset, commitments=commitments)
    assert (",Unused," in path.read_text()) == (commitments and dataset == "infrastructure")
    report = validate(path, environment=environment)
    assert [line.split(" ")[0] for line in report.failed] == [*STATUS, INVOICE]
    assert report.passed > 300


def test_a_tenant_s_file_by_rate_card_has_valid_prices(environment, exported):
    path = exported("chargeback", tenants=("acme",), customer="acme", card=True)
    assert {"Credit", "Adjustment"} <= set(path.read_text().replace(",", " ").split())
    report = validate(path, environment=environment, criteria=(*TENANT_CRITERIA, "UNIT_PRICING_SUPPORTED"))
    assert [line.split(" ")[0] for line in report.failed] == [INVOICE]


@pytest.mark.long
def test_a_tenant_s_own_file_is_valid_without_unit_prices(environment, exported):
    path = exported("chargeback", tenants=("acme",), customer="acme", granularity="daily")

    def failed() -> list[str]:
        report = validate(path, environment=environment, criteria=TENANT_CRITERIA)
        return [line.split(" ")[0] for line in report.failed]

    assert failed() == [INVOICE]
    # Or else these tests could not fail. (It does not multiply prices by quantities where ChargeClass is null, nor
    # look at PricingCategory's values; tests of our own do.)
    path.write_text(path.read_text().replace("Usage-Based", "Sometimes").replace(",EUR,", ",,"))
    assert {"ChargeFrequency-C-003-M", "BillingCurrency-C-004-M"} <= set(failed())

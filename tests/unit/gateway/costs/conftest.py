"""A month that is held against a provider's bill."""

from __future__ import annotations

import pytest
from sqlalchemy import delete

from gateway.costs.reconciliation.bill_files import BillFormat
from gateway.costs.reconciliation.bills import import_bill
from gateway.metering.ledger.schema import dirty_hours
from tests.unit.gateway.costs import billed


@pytest.fixture
def november(ledger):
    billed.fill(ledger)
    return ledger


@pytest.fixture
def settled(november):
    """Nothing waits for a roll-up any more."""
    with november.write() as connection:
        connection.execute(delete(dirty_hours))
    return november


@pytest.fixture
def bill(november, tmp_path):
    """A function that imports lines of a bill."""

    def run(*lines):
        path = tmp_path / "bill.csv"
        path.write_text(billed.HEAD + "".join(f"{line}\n" for line in lines))
        import_bill(november, str(path), file_name="b", reading=BillFormat(), skip_bad=False, now=1)

    return run

from __future__ import annotations

from gateway.installation.doctor.operations.installation_checks import ledger_away
from gateway.metering.ledger.database import LedgerUnavailableError, UnknownSchemaError


def test_a_ledger_of_a_newer_florin_needs_that_florin_not_its_database():
    away, newer = (
        ledger_away(error)
        for error in (LedgerUnavailableError("connection refused"), UnknownSchemaError("0013"))
    )
    assert "Start its database" in away.remedy
    assert newer.remedy.startswith("Install the version of Florin that it belongs to again.")
    assert (newer.status, newer.message) == ("problem", "0013")

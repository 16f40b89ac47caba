"""Reconciliation: compares records with the engines' counters and GPU-hours with the provider's bill, and
checks that the ledger is complete. Each difference is a line with its cause and a verdict (see `verdicts`): a
cause that is identified is not a cost that is accepted."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from adapters.wording import counted
from gateway.costs.periods import complete_hours, iso
from gateway.costs.reconciliation.acceptances import read_acceptances
from gateway.costs.reconciliation.bill_section import bill_findings, bill_section
from gateway.costs.reconciliation.completeness import completeness
from gateway.costs.reconciliation.drift import drift
from gateway.costs.reconciliation.token_section import token_findings, token_section
from gateway.metering.ledger.ledger import Ledger
from gateway.units import decimal_of

__all__ = ["TOLERANCE", "drift", "reconcile"]

TOLERANCE = Fraction(1, 10)
"""Percentage that need not be accepted: for example a warm-up, or a scrape of /metrics between two steps."""
_SHOWN = 10


def reconcile(ledger: Ledger, month: str, *, tolerance: Fraction = TOLERANCE, now: int) -> dict[str, Any]:
    """Reconcile the complete hours of a month. `tolerance`: percent. docs/finance.md shows the result.

    Raises PeriodError, LedgerUnavailableError."""
    within = complete_hours(month, now)
    with ledger.read() as connection:
        acceptances = read_acceptances(connection, month)
        tokens = token_section(connection, month, within, acceptances)
        bill = bill_section(connection, month, within, acceptances)
        complete = completeness(connection, month, within)
    findings = [
        *token_findings(tokens, tolerance),
        *bill_findings(bill, month, tolerance),
        *_completeness_findings(complete),
    ]
    return {
        "month": month,
        "from": iso(within.start),
        "to": iso(within.end),
        "tolerance_percent": decimal_of(tolerance),
        "tokens": tokens,
        "bill": bill,
        "completeness": complete,
        "unexplained": findings,
        "ok": not findings,
    }


def _completeness_findings(complete: dict[str, Any]) -> list[str]:
    findings = [
        f"The parts of an engine-hour do not add up to the whole: {imbalance}."
        for imbalance in complete["imbalances"]
    ]
    findings += [
        f"{aside['engine']} ({aside['gpu_type']}) at {aside['hour']} is set aside and in no report or bill: "
        f"{aside['reason']}."
        for aside in complete["set_aside"][:_SHOWN]
    ]
    if (more := len(complete["set_aside"]) - _SHOWN) > 0:
        hours = counted(more, "more engine-hour is", "more engine-hours are")
        findings.append(f"{hours} set aside: florin cost set-aside.")
    if complete["implausible"]:
        findings.append(
            f"{counted(complete['implausible'], 'record has', 'records have')} implausible token counts."
        )
    if complete["delivered_twice"]:
        findings.append(
            f"{counted(complete['delivered_twice'], 'request has', 'requests have')} two billed attempts."
        )
    if waiting := sum(complete["quarantined"].values()):
        findings.append(
            f"{counted(waiting, 'record is', 'records are')} in quarantine, for review: florin cost "
            "quarantine shows them; "
            "florin cost dismiss RECORD --reason … says that they are rightly in no bill."
        )
    return findings

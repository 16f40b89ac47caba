"""Reconciliation: compares records with the engines' counters and GPU-hours with the provider's bill, and
checks that the ledger is complete. Each difference is a line with its cause and a verdict (see `verdicts`): a
cause that is identified is not a cost that is accepted."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from gateway.costs.periods import HOUR, Period, iso, month
from gateway.costs.prices.amounts import decimal_of
from gateway.costs.reconciliation.acceptances import read_acceptances
from gateway.costs.reconciliation.bill_section import bill_findings, bill_section
from gateway.costs.reconciliation.completeness import completeness
from gateway.costs.reconciliation.drift import drift
from gateway.costs.reconciliation.token_section import token_findings, token_section
from gateway.metering.ledger.ledger import Ledger

__all__ = ["TOLERANCE", "drift", "reconcile"]

TOLERANCE = Fraction(1, 10)
"""Percentage that need not be accepted: for example a warm-up, or a scrape of /metrics between two steps."""
_SHOWN = 10


def reconcile(ledger: Ledger, of: str, *, tolerance: Fraction = TOLERANCE, now: int) -> dict[str, Any]:
    """Reconcile the complete hours of the month `of`. `tolerance`: percent. docs/finance.md shows the result.

    Raises PeriodError, LedgerUnavailableError."""
    whole = month(of)
    within = Period(whole.start, max(whole.start, min(whole.end, now - now % HOUR)))
    with ledger.read() as connection:
        acceptances = read_acceptances(connection, of)
        tokens = token_section(connection, of, within, acceptances)
        bill = bill_section(connection, of, within, acceptances)
        complete = completeness(connection, of, within)
    findings = [
        *token_findings(tokens, tolerance),
        *bill_findings(bill, of, tolerance),
        *_completeness_findings(complete),
    ]
    return {
        "month": of,
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
    found = [
        f"The parts of an engine-hour do not add up to the whole: {one}." for one in complete["imbalances"]
    ]
    found += [
        f"{one['engine']} ({one['gpu_type']}) at {one['hour']} is set aside and in no report or bill: "
        f"{one['reason']}."
        for one in complete["set_aside"][:_SHOWN]
    ]
    if (more := len(complete["set_aside"]) - _SHOWN) > 0:
        found.append(f"{more:,} more engine-hours are set aside: florin cost set-aside.")
    if complete["implausible"]:
        found.append(f"{complete['implausible']:,} records have implausible token counts.")
    if complete["delivered_twice"]:
        found.append(f"{complete['delivered_twice']:,} requests have two billed attempts.")
    if waiting := sum(complete["quarantined"].values()):
        found.append(f"{waiting:,} records are quarantined and need review.")
    return found

"""The part of a reconciliation about tokens: engines' counters against usage records."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from sqlalchemy import Connection

from gateway.costs.periods import Period, iso
from gateway.costs.reconciliation.counters import REASONS, CounterCheck
from gateway.costs.reconciliation.drift import Unsampled, token_checks, unsampled
from gateway.costs.reconciliation.verdicts import Acceptance, Amounts, Verdict, described, line_id
from gateway.metering.ledger.engine_hours import pruned_before


def token_section(
    connection: Connection, month: str, within: Period, acceptances: Mapping[str, Acceptance]
) -> dict[str, Any]:
    """The checks of the month within the period. Reads the month's records once."""
    removed = pruned_before(connection)
    if removed > within.start:
        note = f"Records before {iso(removed)} were pruned, so the tokens of this month cannot be compared."
        return {"checks": [], "unsampled": [], "note": note}
    return {
        "checks": [_check(check, month, acceptances) for check in token_checks(connection, within)],
        "unsampled": [_unsampled(check) for check in unsampled(connection, within)],
        "note": None,
    }


def _check(check: CounterCheck, month: str, acceptances: Mapping[str, Acceptance]) -> dict[str, Any]:
    name = line_id(month, "tokens", check.window.engine, iso(check.window.epoch), check.token_type)
    amounts = Amounts(tokens=check.rest)
    return {
        **described(name, amounts, acceptances, identified=False, matched=False),
        "engine": check.window.engine,
        "epoch": iso(check.window.epoch),
        "from": iso(check.window.start),
        "to": iso(check.window.end),
        "token_type": check.token_type,
        "engine_tokens": check.engine_tokens,
        "record_tokens": check.record_tokens,
        "difference": check.engine_tokens - check.record_tokens,
        "lines": [
            {
                "kind": line.kind,
                "reason": REASONS[line.kind],
                "tokens": line.tokens,
                "at_least": line.low,
                "at_most": line.high,
                "records": line.records,
            }
            for line in check.lines
        ],
        "unexplained": check.rest,
    }


def _unsampled(gap: Unsampled) -> dict[str, Any]:
    return {
        "engine": gap.engine,
        "from": iso(gap.within.start),
        "to": iso(gap.within.end),
        "records": gap.tally.records,
        "input": gap.tally.input,
        "output": gap.tally.output,
    }


def token_findings(tokens: dict[str, Any], tolerance: Fraction) -> list[str]:
    """A sentence for each engine and token type that exceeds the tolerance and is not accepted."""
    findings = []
    for check in tokens["checks"]:
        rest, total = check["unexplained"], max(check["engine_tokens"], check["record_tokens"])
        if abs(rest) * 100 <= tolerance * total or check["verdict"] == Verdict.ACCEPTED:
            continue
        what = f"{abs(rest):,} {check['token_type']} tokens of {total:,} since {check['from']}"
        findings.append(
            f"{check['engine']} counted {what} without a usage record: other clients use it, it was warmed "
            "up, or it was used before it was registered."
            if rest > 0
            else f"Usage records of {check['engine']} have {what} that the engine never counted."
        )
    return findings

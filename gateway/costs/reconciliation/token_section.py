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
    connection: Connection, of: str, within: Period, acceptances: Mapping[str, Acceptance]
) -> dict[str, Any]:
    """The checks of the month `of` within the period. Reads the month's records once."""
    removed = pruned_before(connection)
    if removed > within.start:
        note = f"Records before {iso(removed)} were pruned, so the tokens of this month cannot be compared."
        return {"checks": [], "unsampled": [], "note": note}
    return {
        "checks": [_check(found, of, acceptances) for found in token_checks(connection, within)],
        "unsampled": [_unsampled(found) for found in unsampled(connection, within)],
        "note": None,
    }


def _check(found: CounterCheck, of: str, acceptances: Mapping[str, Acceptance]) -> dict[str, Any]:
    name = line_id(of, "tokens", found.window.engine, iso(found.window.epoch), found.token_type)
    amounts = Amounts(tokens=found.rest)
    return {
        **described(name, amounts, acceptances, identified=False, matched=False),
        "engine": found.window.engine,
        "epoch": iso(found.window.epoch),
        "from": iso(found.window.start),
        "to": iso(found.window.end),
        "token_type": found.token_type,
        "engine_tokens": found.engine_tokens,
        "record_tokens": found.record_tokens,
        "difference": found.engine_tokens - found.record_tokens,
        "lines": [
            {
                "kind": line.kind,
                "reason": REASONS[line.kind],
                "tokens": line.tokens,
                "at_least": line.low,
                "at_most": line.high,
                "records": line.records,
            }
            for line in found.lines
        ],
        "unexplained": found.rest,
    }


def _unsampled(found: Unsampled) -> dict[str, Any]:
    return {
        "engine": found.engine,
        "from": iso(found.within.start),
        "to": iso(found.within.end),
        "records": found.tally.records,
        "input": found.tally.input,
        "output": found.tally.output,
    }


def token_findings(tokens: dict[str, Any], tolerance: Fraction) -> list[str]:
    """A sentence for each engine and token type that exceeds the tolerance and is not accepted."""
    found = []
    for one in tokens["checks"]:
        rest, whole = one["unexplained"], max(one["engine_tokens"], one["record_tokens"])
        if abs(rest) * 100 <= tolerance * whole or one["verdict"] == Verdict.ACCEPTED:
            continue
        what = f"{abs(rest):,} {one['token_type']} tokens of {whole:,} since {one['from']}"
        found.append(
            f"{one['engine']} counted {what} without a usage record: other clients use it, it was warmed up, "
            "or it was used before it was registered."
            if rest > 0
            else f"Usage records of {one['engine']} have {what} that the engine never counted."
        )
    return found

"""Acceptances of differences: who accepted what, when and why. Append-only; the latest entry of a line
counts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from sqlalchemy import Connection, insert, select

from gateway.costs.periods import complete_hours, iso, month_of
from gateway.costs.reconciliation.bill_section import bill_section
from gateway.costs.reconciliation.token_section import token_section
from gateway.costs.reconciliation.verdicts import Acceptance, Amounts, Verdict
from gateway.metering.ledger.audit_log import record
from gateway.metering.ledger.chain import seal
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import bill_acceptances as table
from gateway.units import NANO

_LINE = re.compile(r"(\d{4}-\d{2})-[0-9a-f]{8}", re.ASCII)


class LineNotFoundError(Exception):
    """No such line, or none that can be accepted or withdrawn; the message says what to do."""


def month_of_line(line: str) -> str:
    """Raises LineNotFoundError."""
    match = _LINE.fullmatch(line)
    if not match:
        raise LineNotFoundError(
            f"{line[:40]!r} is not a line like 2026-10-8f3b2c91: florin cost reconcile shows them."
        )
    return match[1]


def read_acceptances(connection: Connection, month: str) -> dict[str, Acceptance]:
    """The acceptances of a month that were not withdrawn, by line."""
    acceptances: dict[str, Acceptance] = {}
    c = table.c
    query = select(c.line, c.accepted, c.by, c.at, c.reason, c.nano_gpu_hours, c.cost, c.tokens)
    for line, accepted, by, accepted_at, reason, *amounts in connection.execute(
        query.where(c.month == month).order_by(c.id)
    ):
        acceptances.pop(line, None)
        if accepted:
            acceptances[line] = Acceptance(by, accepted_at, reason, Amounts(*amounts))
    return acceptances


def accept(
    ledger: Ledger,
    month: str,
    *,
    lines: Sequence[str],
    kind: str | None = None,
    reason: str,
    now: int,
    by: str,
    actor: str = "",
) -> list[dict[str, Any]]:
    """Accept lines of the reconciliation of a month with their present amounts, and with `kind`, all lines of
    that kind. Returns them; accepting a line again changes nothing. `actor`: recorded in the audit log; empty
    to record nothing.

    Raises PeriodError, LineNotFoundError, LedgerUnavailableError."""
    known = _lines(ledger, month, now, with_tokens=bool(lines))
    chosen = list(dict.fromkeys(lines))
    if kind is not None:
        chosen += [name for name, line in known.items() if line["kind"] == kind and name not in chosen]
        if not chosen:
            raise LineNotFoundError(f"The reconciliation of {month} has no line of kind {kind[:40]!r}.")
    for name in chosen:
        if name not in known:
            raise LineNotFoundError(
                f"The reconciliation of {month} has no line {name[:40]!r}: "
                f"florin cost reconcile --month {month} shows its lines."
            )
        if known[name]["verdict"] == Verdict.MATCHED:
            raise LineNotFoundError(f"{name} is matched: there is nothing to accept.")
    new = [known[name] for name in chosen if known[name]["verdict"] != Verdict.ACCEPTED]
    with ledger.write() as connection:
        for line in new:
            _put(
                connection, month, line["line"], _amounts(line), accepted=True, reason=reason, now=now, by=by
            )
        if new:
            seal(connection, "acceptance", month)
            details = {
                "reason": reason,
                "lines": [{key: line[key] for key in _TOLD if key in line} for line in new],
            }
            record(connection, actor, "bill.accept", month, details, now)
    return [known[name] for name in chosen]


_TOLD = ("line", "kind", "engine", "gpu_hours", "cost", "tokens")


def withdraw(ledger: Ledger, line: str, *, reason: str, now: int, by: str, actor: str = "") -> dict[str, Any]:
    """Withdraw the acceptance of a line. Raises LineNotFoundError, LedgerUnavailableError."""
    month = month_of_line(line)
    with ledger.write() as connection:
        acceptance = read_acceptances(connection, month).get(line)
        if acceptance is None:
            raise LineNotFoundError(f"{line} is not accepted: florin cost acceptances --month {month}.")
        _put(connection, month, line, acceptance.amounts, accepted=False, reason=reason, now=now, by=by)
        seal(connection, "acceptance", month)
        record(connection, actor, "bill.withdraw_acceptance", month, {"line": line, "reason": reason}, now)
    return {"line": line, "month": month, "reason": reason, **acceptance.amounts.document()}


def list_acceptances(ledger: Ledger, month: str) -> list[dict[str, Any]]:
    """Every acceptance and withdrawal of a month, newest first. Raises PeriodError,
    LedgerUnavailableError."""
    month_of(month)
    with ledger.read() as connection:
        rows = connection.execute(
            select(table).where(table.c.month == month).order_by(table.c.id.desc())
        ).mappings()
        return [
            {
                "line": row["line"],
                "accepted": row["accepted"],
                "recorded_at": iso(row["at"]),
                "by": row["by"],
                "reason": row["reason"],
                **Amounts(row["nano_gpu_hours"], row["cost"], row["tokens"]).document(),
            }
            for row in rows
        ]


def _lines(ledger: Ledger, month: str, now: int, *, with_tokens: bool) -> dict[str, dict[str, Any]]:
    """The lines that can be accepted. Counting tokens reads the month's records, so only if needed."""
    within = complete_hours(month, now)
    by_id: dict[str, dict[str, Any]] = {}
    with ledger.read() as connection:
        acceptances = read_acceptances(connection, month)
        bill = bill_section(connection, month, within, acceptances)
        for account in bill["accounts"] if bill else ():
            for line in account["lines"]:
                by_id[line["line"]] = {**line, "engine": account["engine"]}
        if with_tokens:
            for check in token_section(connection, month, within, acceptances)["checks"]:
                by_id[check["line"]] = {
                    "line": check["line"],
                    "kind": "tokens",
                    "engine": check["engine"],
                    "reason": f"{check['token_type']} tokens that nothing explains",
                    "tokens": check["unexplained"],
                    "verdict": check["verdict"],
                }
    return by_id


def _amounts(line: dict[str, Any]) -> Amounts:
    if "tokens" in line:
        return Amounts(tokens=line["tokens"])
    return Amounts(int(Fraction(line["gpu_hours"]) * NANO), line["cost"])


def _put(
    connection: Connection,
    month: str,
    line: str,
    amounts: Amounts,
    *,
    accepted: bool,
    reason: str,
    now: int,
    by: str,
) -> None:
    connection.execute(
        insert(table).values(
            month=month, line=line, accepted=accepted, at=now, by=by, reason=reason,
            nano_gpu_hours=amounts.nano, cost=amounts.cost, tokens=amounts.tokens,
        )
    )  # fmt: skip  # one name a line says no more

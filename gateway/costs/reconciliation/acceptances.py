"""Acceptances of differences: who accepted what, when and why. Append-only; the latest entry of a line
counts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from sqlalchemy import Connection, insert, select

from gateway.costs.periods import HOUR, Period, iso, month
from gateway.costs.reconciliation.bill_section import bill_section
from gateway.costs.reconciliation.token_section import token_section
from gateway.costs.reconciliation.verdicts import NANO, Acceptance, Amounts, Verdict
from gateway.metering.ledger.audit_log import record
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import bill_acceptances as table

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


def read_acceptances(connection: Connection, of: str) -> dict[str, Acceptance]:
    """The acceptances of a month that were not withdrawn, by line."""
    found: dict[str, Acceptance] = {}
    c = table.c
    query = select(c.line, c.accepted, c.by, c.at, c.reason, c.nano_gpu_hours, c.cost, c.tokens)
    for line, accepted, by, at, reason, *amounts in connection.execute(
        query.where(c.month == of).order_by(c.id)
    ):
        found.pop(line, None)
        if accepted:
            found[line] = Acceptance(by, at, reason, Amounts(*amounts))
    return found


def accept(
    ledger: Ledger,
    of: str,
    *,
    lines: Sequence[str],
    kind: str | None = None,
    reason: str,
    now: int,
    by: str,
    actor: str = "",
) -> list[dict[str, Any]]:
    """Accept lines of the reconciliation of the month `of` with their present amounts, and with `kind`, all
    lines of that kind. Returns them; accepting a line again changes nothing. `actor`: recorded in the audit
    log; empty to record nothing.

    Raises PeriodError, LineNotFoundError, LedgerUnavailableError."""
    found = _lines(ledger, of, now, with_tokens=bool(lines))
    wanted = list(dict.fromkeys(lines))
    if kind is not None:
        wanted += [name for name, one in found.items() if one["kind"] == kind and name not in wanted]
        if not wanted:
            raise LineNotFoundError(f"The reconciliation of {of} has no line of kind {kind[:40]!r}.")
    for name in wanted:
        if name not in found:
            raise LineNotFoundError(
                f"The reconciliation of {of} has no line {name[:40]!r}: florin cost reconcile --month {of} "
                "shows its lines."
            )
        if found[name]["verdict"] == Verdict.MATCHED:
            raise LineNotFoundError(f"{name} is matched: there is nothing to accept.")
    new = [found[name] for name in wanted if found[name]["verdict"] != Verdict.ACCEPTED]
    with ledger.write() as connection:
        for one in new:
            _put(connection, of, one["line"], _amounts(one), accepted=True, reason=reason, now=now, by=by)
        if new:
            told = {
                "reason": reason,
                "lines": [{key: one[key] for key in _TOLD if key in one} for one in new],
            }
            record(connection, actor, "bill.accept", of, told, now)
    return [found[name] for name in wanted]


_TOLD = ("line", "kind", "engine", "gpu_hours", "cost", "tokens")


def unaccept(ledger: Ledger, line: str, *, reason: str, now: int, by: str, actor: str = "") -> dict[str, Any]:
    """Withdraw the acceptance of a line. Raises LineNotFoundError, LedgerUnavailableError."""
    of = month_of_line(line)
    with ledger.write() as connection:
        held = read_acceptances(connection, of).get(line)
        if held is None:
            raise LineNotFoundError(f"{line} is not accepted: florin cost acceptances --month {of}.")
        _put(connection, of, line, held.amounts, accepted=False, reason=reason, now=now, by=by)
        record(connection, actor, "bill.unaccept", of, {"line": line, "reason": reason}, now)
    return {"line": line, "month": of, "reason": reason, **held.amounts.document()}


def list_acceptances(ledger: Ledger, of: str) -> list[dict[str, Any]]:
    """Every acceptance and withdrawal of a month, newest first. Raises PeriodError,
    LedgerUnavailableError."""
    month(of)
    with ledger.read() as connection:
        rows = connection.execute(
            select(table).where(table.c.month == of).order_by(table.c.id.desc())
        ).mappings()
        return [
            {
                "line": row["line"],
                "accepted": row["accepted"],
                "at": iso(row["at"]),
                "by": row["by"],
                "reason": row["reason"],
                **Amounts(row["nano_gpu_hours"], row["cost"], row["tokens"]).document(),
            }
            for row in rows
        ]


def _lines(ledger: Ledger, of: str, now: int, *, with_tokens: bool) -> dict[str, dict[str, Any]]:
    """The lines that can be accepted. Counting tokens reads the month's records, so only if needed."""
    whole = month(of)
    within = Period(whole.start, max(whole.start, min(whole.end, now - now % HOUR)))
    found: dict[str, dict[str, Any]] = {}
    with ledger.read() as connection:
        acceptances = read_acceptances(connection, of)
        bill = bill_section(connection, of, within, acceptances)
        for account in bill["accounts"] if bill else ():
            for one in account["lines"]:
                found[one["line"]] = {**one, "engine": account["engine"]}
        if with_tokens:
            for check in token_section(connection, of, within, acceptances)["checks"]:
                found[check["line"]] = {
                    "line": check["line"],
                    "kind": "tokens",
                    "engine": check["engine"],
                    "reason": f"{check['token_type']} tokens that nothing explains",
                    "tokens": check["unexplained"],
                    "verdict": check["verdict"],
                }
    return found


def _amounts(one: dict[str, Any]) -> Amounts:
    if "tokens" in one:
        return Amounts(tokens=one["tokens"])
    return Amounts(int(Fraction(one["gpu_hours"]) * NANO), one["cost"])


def _put(
    connection: Connection,
    of: str,
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
            month=of, line=line, accepted=accepted, at=now, by=by, reason=reason,
            nano_gpu_hours=amounts.nano, cost=amounts.cost, tokens=amounts.tokens,
        )
    )  # fmt: skip  # one name a line says no more

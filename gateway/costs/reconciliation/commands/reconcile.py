"""florin cost reconcile"""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta
from decimal import Decimal, InvalidOperation
from functools import partial
from typing import Annotated, Any

import typer
from rich.text import Text

from adapters.wording import counted
from gateway.commands.client import UsageError
from gateway.commands.output import busy, clean, facts, note, note_incomplete, say, show, table
from gateway.commands.session import REFUSED, Session, command
from gateway.costs.reconciliation.schemas.reconciliation import (
    SETTLED,
    BillAccount,
    BillDifference,
    BillFigures,
    BillKind,
    BillSection,
    LedgerCompleteness,
    Reconciliation,
    TokenCheck,
    TokenSection,
    Verdict,
)
from gateway.units import shown

app = typer.Typer()

_SHOWN = 20
"""Lines that are shown for acceptance; --json has all."""
_LISTED = "provisioned GPU cost at list price"


@command(app, "reconcile")
def reconcile(
    session: Session,
    *,
    month: Annotated[
        str | None, typer.Option(help="Month in UTC, for example 2026-07. Default: this month so far.")
    ] = None,
    tolerance: Annotated[
        str, typer.Option(help="Percentage that need not be accepted, for example 0.5.")
    ] = "0.1",
    accounts: Annotated[bool, typer.Option("--accounts", help="Also show the bill for each engine.")] = False,
) -> None:
    """Compare usage records with the engines' counters, and GPU-hours with the bill.

    Each difference is a line with its cause and a verdict: matched, cause identified, or accepted (florin
    cost accept). Exit code 1 if no bill was imported, or if what is not accepted exceeds the tolerance.

    Example: florin cost reconcile --month 2026-07
    """
    try:
        if not 0 <= Decimal(tolerance) <= 100:
            raise InvalidOperation
    except InvalidOperation as error:
        raise UsageError(f"--tolerance: {tolerance!r} is not a percentage from 0 to 100.") from error
    with busy("Reconciling"):
        reconciliation = session.api.get(
            "/finance/v1/reconciliation", Reconciliation, {"month": month, "tolerance": tolerance}
        )
    session.result(reconciliation, partial(_people, accounts=accounts))
    if not reconciliation.ok:
        raise typer.Exit(REFUSED)


def _people(reconciliation: Reconciliation, *, accounts: bool) -> None:
    note(f"{clean(reconciliation.start)} to {clean(reconciliation.to)}")
    _tokens(reconciliation.tokens)
    if reconciliation.bill is None:
        note("No bill imported for this period.")
    else:
        _bill(reconciliation.bill, accounts=accounts)
    _completeness(reconciliation.completeness)
    note_incomplete(reconciliation)
    for sentence in reconciliation.unexplained:
        note(f"Not reconciled: {clean(sentence)}")
    if reconciliation.ok:
        say(
            "Reconciled: all but at most "
            f"{clean(reconciliation.tolerance_percent)} percent of the bill is matched or accepted."
        )


def _tokens(tokens: TokenSection) -> None:
    if tokens.note:
        note(clean(tokens.note))
    rows: list[list[Any]] = []
    for check in tokens.checks:
        rows.append(
            [
                check.engine, check.start, check.token_type, check.engine_tokens, check.record_tokens,
                _signed(check.difference), _rest(check.unexplained), _to_accept(check),
            ]
        )  # fmt: skip  # as the columns
        for cause in check.lines:
            reason = f"  {cause.reason} ({counted(cause.records, 'record')})"
            blank = Text("")
            rows.append([Text(reason, "dim"), *[blank] * 4, Text(_signed(cause.tokens), "dim"), blank, blank])
    if rows:
        columns = (
            *("engine", "since", "tokens", "engine counted", "in records", "difference", "cause unknown"),
            "line",
        )
        say("Tokens: engine counters and usage records")
        show(table(columns, rows, right=columns[3:7]))
    elif not tokens.note:
        note("No engine counters were sampled in this period.")
    for gap in tokens.unsampled:
        note(
            f"{clean(gap.engine)}: no engine counters to compare {counted(gap.records, 'record')} with, from "
            f"{clean(gap.start)} to {clean(gap.to)}."
        )


def _to_accept(check: TokenCheck) -> Text:
    """The name of a line that can be accepted, or that it is."""
    if check.verdict == "accepted":
        return Text("accepted", "dim")
    return Text(check.line if check.unexplained else "")


def _bill(bill: BillSection, *, accounts: bool) -> None:
    say("")
    say("GPU-hours and cost: Florin compared with the bill")
    columns = ("", "GPU-hours", f"cost {clean(bill.currency)}", "verdict")
    _figures(bill, [[*_difference(kind), _of_kind(kind)] for kind in bill.lines], columns)
    note(f"{bill.attributed_gpu_hours} of the provisioned hours are attributed to tenants' requests.")
    for account in bill.accounts if accounts else ():
        say("")
        say(
            f"{_name(account)}: billed at {account.billed_rate or '-'}, by the price book "
            f"{account.own_rate or '-'} per GPU-hour"
        )
        _figures(account, [[*_difference(line), _verdict(line.verdict)] for line in account.lines], columns)
    _open_lines(bill)
    _accepted(bill)


def _figures(bill: BillFigures, differences: list[list[Any]], columns: tuple[str, ...]) -> None:
    """From the cost at list price to what is billed."""
    rows = [
        [_LISTED, shown(bill.provisioned_gpu_hours, 6), shown(bill.own_cost, 6), Text("")],
        *differences,
        [Text("billed", "bold"), shown(bill.billed_gpu_hours, 6), shown(bill.billed_cost, 6), Text("")],
    ]
    show(table(columns, rows, right=columns[1:3]))


def _open_lines(bill: BillSection) -> None:
    """What a person must still accept, the largest first."""
    lines = [
        (account, line) for account in bill.accounts for line in account.lines if line.verdict not in SETTLED
    ]
    if not lines:
        return
    lines.sort(key=lambda item: (-abs(Decimal(item[1].cost)), -abs(Decimal(item[1].gpu_hours))))
    rows = [
        [line.line, _name(account), *_difference(line, indent=""), _verdict(line.verdict)]
        for account, line in lines[:_SHOWN]
    ]
    columns = ("line", "engine", "cause", "GPU-hours", f"cost {clean(bill.currency)}", "verdict")
    say("")
    say("Not accepted")
    show(table(columns, rows, right=columns[3:5]))
    if len(lines) > _SHOWN:
        note(f"{len(lines) - _SHOWN:,} smaller lines are not shown: --json has all.")
    note('To accept: florin cost accept LINE --reason "…"')


def _accepted(bill: BillSection) -> None:
    rows = [
        [
            line.line, _name(account), shown(accepted.gpu_hours, 6, "+"), shown(accepted.cost, 6, "+"),
            accepted.by, accepted.recorded_at, accepted.reason,
            Text("" if accepted.current else "no longer: the amount changed", "bold"),
        ]
        for account in bill.accounts
        for line in account.lines
        if (accepted := line.accepted) is not None
    ]  # fmt: skip  # as the columns
    if rows:
        cost = f"cost {clean(bill.currency)}"
        columns = ("line", "engine", "GPU-hours", cost, "by key", "at", "reason", "")
        say("")
        say("Accepted")
        show(table(columns, rows, right=columns[2:4]))


def _name(account: BillAccount) -> str:
    if not account.gpu_type:
        return account.engine or "no GPU type"
    purchase = account.purchase.replace("_", " ")
    return " ".join(filter(None, (account.engine, account.gpu_type, account.region, purchase)))


def _difference(line: BillDifference, indent: str = "  ") -> list[Any]:
    return [f"{indent}{line.reason}{_when(line)}", shown(line.gpu_hours, 6, "+"), shown(line.cost, 6, "+")]


_VERDICTS = {
    "matched": "matched",
    "accepted": "accepted",
    "identified": "cause identified",
    "unidentified": "cause unknown",
}


def _verdict(verdict: Verdict) -> Text:
    return Text(_VERDICTS[verdict], "" if verdict in SETTLED else "bold")


def _of_kind(kind: BillKind) -> Text:
    """The verdict on the lines of one kind."""
    text = _verdict(kind.verdict)
    if 0 < kind.unaccepted < kind.lines:
        text.append(f", {kind.unaccepted:,} of {kind.lines:,} not accepted")
    return text


def _when(line: BillDifference) -> str:
    if not line.hours or line.first is None or line.last is None:
        return ""
    if line.hours == 1:
        return f" (the hour from {line.first})"
    end = datetime.fromisoformat(line.last) + timedelta(hours=1)
    return f" ({line.hours:,} hours, {line.first} to {end:%Y-%m-%dT%H:%M:%SZ})"


def _completeness(ledger: LedgerCompleteness) -> None:
    say("")
    say("Completeness of the ledger")
    records = Counter[str]()
    for row in ledger.records:
        records[row.usage_source] += row.records
    quarantined = ", ".join(f"{count:,} {reason}" for reason, count in ledger.quarantined.items())
    show(
        facts(
            [
                ("records with the engine's final counts", records["engine_final"]),
                ("with the last counts before an interruption", records["engine_partial"]),
                ("estimated by the gateway", records["estimated"]),
                ("without tokens", records["none"]),
                ("requests billed twice", ledger.delivered_twice),
                ("records in quarantine", quarantined or 0),
                ("engine-hours still to be rolled up", ledger.hours_pending),
                ("engine-hours set aside", len(ledger.set_aside)),
                ("engine-hours whose parts do not sum to their time", len(ledger.imbalances)),
            ]
        )
    )


def _signed(tokens: int) -> str:
    return f"{tokens:+,}" if tokens else "0"


def _rest(tokens: int) -> Text:
    return Text(_signed(tokens), "bold" if tokens else "")

"""florin cost reconcile"""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any

import typer
from rich.text import Text

from gateway.commands.client import Json, UsageError
from gateway.commands.output import busy, clean, facts, note, note_incomplete, say, show, table
from gateway.commands.session import REFUSED, Session, command
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
        body = session.api.get("/finance/v1/reconciliation", {"month": month, "tolerance": tolerance})
    session.result(body, lambda b: _people(b, accounts=accounts))
    if not body["ok"]:
        raise typer.Exit(REFUSED)


def _people(body: Json, *, accounts: bool) -> None:
    note(f"{clean(body['from'])} to {clean(body['to'])}")
    _tokens(body["tokens"])
    if body["bill"] is None:
        note("No bill imported for this period.")
    else:
        _bill(body["bill"], accounts=accounts)
    _completeness(body["completeness"])
    note_incomplete(body)
    for sentence in body["unexplained"]:
        note(f"Not reconciled: {clean(sentence)}")
    if body["ok"]:
        say(
            "Reconciled: all but at most "
            f"{clean(body['tolerance_percent'])} percent of the bill is matched or accepted."
        )


def _tokens(tokens: Json) -> None:
    if tokens["note"]:
        note(clean(tokens["note"]))
    rows: list[list[Any]] = []
    for one in tokens["checks"]:
        rows.append(
            [
                one["engine"], one["from"], one["token_type"], one["engine_tokens"], one["record_tokens"],
                _signed(one["difference"]), _rest(one["unexplained"]), _to_accept(one),
            ]
        )  # fmt: skip  # as the columns
        rows += [
            [Text(f"  {_reason(line)}", "dim"), "", "", "", "", Text(_signed(line["tokens"]), "dim"), "", ""]
            for line in one["lines"]
        ]
    if rows:
        columns = (
            *("engine", "since", "tokens", "engine counted", "in records", "difference", "cause unknown"),
            "line",
        )
        blank = [[cell if cell != "" else Text("") for cell in row] for row in rows]
        say("Tokens: engine counters and usage records")
        show(table(columns, blank, right=columns[3:7]))
    elif not tokens["note"]:
        note("No engine counters were sampled in this period.")
    for one in tokens["unsampled"]:
        note(
            f"{clean(one['engine'])}: {one['records']:,} records from {clean(one['from'])} to "
            f"{clean(one['to'])} have no engine counters to compare with."
        )


def _reason(line: Json) -> str:
    return f"{line['reason']} ({line['records']:,} records)"


def _to_accept(check: Json) -> Text:
    """The name of a line that can be accepted, or that it is."""
    if check["verdict"] == "accepted":
        return Text("accepted", "dim")
    return Text(check["line"] if check["unexplained"] else "")


def _bill(bill: Json, *, accounts: bool) -> None:
    currency = clean(bill["currency"])
    say("")
    say("GPU-hours and cost: Florin compared with the bill")
    columns = ("", "GPU-hours", f"cost {currency}", "verdict")
    rows = [
        [_LISTED, shown(bill["provisioned_gpu_hours"], 6), shown(bill["own_cost"], 6), Text("")],
        *([*_difference(line), _of_kind(line)] for line in bill["lines"]),
        [Text("billed", "bold"), shown(bill["billed_gpu_hours"], 6), shown(bill["billed_cost"], 6), Text("")],
    ]
    show(table(columns, rows, right=columns[1:3]))
    note(f"{bill['attributed_gpu_hours']} of the provisioned hours are attributed to tenants' requests.")
    if accounts:
        _accounts(bill["accounts"], columns)
    _open_lines(bill)
    _accepted(bill)


def _accounts(accounts: list[Json], columns: tuple[str, ...]) -> None:
    for one in accounts:
        rates = (
            f"billed at {one['billed_rate'] or '-'}, by the price book {one['own_rate'] or '-'} per GPU-hour"
        )
        say("")
        say(f"{_name(one)}: {rates}")
        rows = [
            [_LISTED, shown(one["provisioned_gpu_hours"], 6), shown(one["own_cost"], 6), Text("")],
            *([*_difference(line), _verdict(line["verdict"])] for line in one["lines"]),
            ["billed", shown(one["billed_gpu_hours"], 6), shown(one["billed_cost"], 6), Text("")],
        ]
        show(table(columns, rows, right=columns[1:3]))


def _open_lines(bill: Json) -> None:
    """What a person must still accept, the largest first."""
    found = [
        (account, line)
        for account in bill["accounts"]
        for line in account["lines"]
        if line["verdict"] not in {"matched", "accepted"}
    ]
    if not found:
        return
    found.sort(key=lambda one: (-abs(Decimal(one[1]["cost"])), -abs(Decimal(one[1]["gpu_hours"]))))
    rows = [
        [line["line"], _name(account), *_difference(line, indent=""), _verdict(line["verdict"])]
        for account, line in found[:_SHOWN]
    ]
    columns = ("line", "engine", "cause", "GPU-hours", f"cost {clean(bill['currency'])}", "verdict")
    say("")
    say("Not accepted")
    show(table(columns, rows, right=columns[3:5]))
    if len(found) > _SHOWN:
        note(f"{len(found) - _SHOWN:,} smaller lines are not shown: --json has all.")
    note('To accept: florin cost accept LINE --reason "…"')


def _accepted(bill: Json) -> None:
    rows = []
    for account in bill["accounts"]:
        for line in account["lines"]:
            if not (given := line["accepted"]):
                continue
            amounts = (shown(given["gpu_hours"], 6, "+"), shown(given["cost"], 6, "+"))
            state = "" if given["current"] else "no longer: the amount changed"
            row = (line["line"], _name(account), *amounts, given["by"], given["at"], given["reason"])
            rows.append([*row, Text(state, "bold")])
    if rows:
        cost = f"cost {clean(bill['currency'])}"
        columns = ("line", "engine", "GPU-hours", cost, "by key", "at", "reason", "")
        say("")
        say("Accepted")
        show(table(columns, rows, right=columns[2:4]))


def _name(account: Json) -> str:
    if not account["gpu_type"]:
        return account["engine"] or "no GPU type"
    named = {**account, "purchase": account["purchase"].replace("_", " ")}
    return " ".join(named[part] for part in ("engine", "gpu_type", "region", "purchase") if named[part])


def _difference(line: Json, indent: str = "  ") -> list[Any]:
    return [
        f"{indent}{line['reason']}{_when(line)}",
        shown(line["gpu_hours"], 6, "+"),
        shown(line["cost"], 6, "+"),
    ]


_VERDICTS = {
    "matched": "matched",
    "accepted": "accepted",
    "identified": "cause identified",
    "unidentified": "cause unknown",
}


def _verdict(verdict: str) -> Text:
    settled = verdict in {"matched", "accepted"}
    return Text(_VERDICTS.get(verdict, clean(verdict)), "" if settled else "bold")


def _of_kind(line: Json) -> Text:
    """The verdict on the lines of one kind."""
    shown = _verdict(line["verdict"])
    if 0 < line["unaccepted"] < line["lines"]:
        shown.append(f", {line['unaccepted']:,} of {line['lines']:,} not accepted")
    return shown


def _when(line: Json) -> str:
    if not line["hours"]:
        return ""
    if line["hours"] == 1:
        return f" (the hour from {line['first']})"
    end = datetime.fromisoformat(line["last"]) + timedelta(hours=1)
    return f" ({line['hours']:,} hours, {line['first']} to {end:%Y-%m-%dT%H:%M:%SZ})"


def _completeness(found: Json) -> None:
    say("")
    say("Completeness of the ledger")
    sure = {"engine_final": 0, "engine_partial": 0, "estimated": 0, "none": 0}
    for row in found["records"]:
        sure[row["usage_source"]] = sure.get(row["usage_source"], 0) + row["records"]
    quarantined = ", ".join(f"{count:,} {reason}" for reason, count in found["quarantined"].items())
    show(
        facts(
            [
                ("records with the engine's final counts", sure["engine_final"]),
                ("with the last counts before an interruption", sure["engine_partial"]),
                ("estimated by the gateway", sure["estimated"]),
                ("without tokens", sure["none"]),
                ("requests billed twice", found["delivered_twice"]),
                ("records in quarantine", quarantined or 0),
                ("engine-hours still to be rolled up", found["hours_pending"]),
                ("engine-hours set aside", len(found.get("set_aside", ()))),
                ("engine-hours whose parts do not sum to the whole", len(found["imbalances"])),
            ]
        )
    )


def _signed(tokens: int) -> str:
    return f"{tokens:+,}" if tokens else "0"


def _rest(tokens: int) -> Text:
    return Text(_signed(tokens), "bold" if tokens else "")

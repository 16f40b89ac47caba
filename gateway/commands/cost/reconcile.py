"""florin cost reconcile"""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import Annotated, Any

import typer
from rich.text import Text

from gateway.commands.client import Json, UsageError
from gateway.commands.output import busy, clean, facts, note, say, show, table
from gateway.commands.session import REFUSED, Session, command

app = typer.Typer()


@command(app, "reconcile")
def reconcile(
    session: Session,
    *,
    month: Annotated[
        str | None, typer.Option(help="Month in UTC, for example 2026-07. Default: this month so far.")
    ] = None,
    tolerance: Annotated[
        str, typer.Option(help="Percentage that may remain unexplained, for example 0.5.")
    ] = "0.1",
    accounts: Annotated[bool, typer.Option("--accounts", help="Also show the bill for each engine.")] = False,
) -> None:
    """Compare usage records with the engines' counters, and GPU-hours with the bill.

    Each difference is listed with its cause. Exit code 1 if more than the tolerance is unexplained.

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
        note("No bill imported for this period: florin cost import-bill FILE")
    else:
        _bill(body["bill"], accounts=accounts)
    _completeness(body["completeness"])
    if not body["complete"]:
        note("Records are still arriving in the ledger; try again shortly.")
    for sentence in body["unexplained"]:
        note(f"Unexplained: {clean(sentence)}")
    if body["ok"]:
        say(f"Everything is explained within {clean(body['tolerance_percent'])} percent.")


def _tokens(tokens: Json) -> None:
    if tokens["note"]:
        note(clean(tokens["note"]))
    rows: list[list[Any]] = []
    for one in tokens["checks"]:
        rows.append(
            [
                one["engine"], one["from"], one["token_type"], one["engine_tokens"], one["record_tokens"],
                _signed(one["difference"]), _rest(one["unexplained"]),
            ]
        )  # fmt: skip  # as the columns
        rows += [
            [Text(f"  {_reason(line)}", "dim"), "", "", "", "", Text(_signed(line["tokens"]), "dim"), ""]
            for line in one["lines"]
        ]
    if rows:
        columns = ("engine", "since", "tokens", "engine counted", "in records", "difference", "unexplained")
        blank = [[cell if cell != "" else Text("") for cell in row] for row in rows]
        say("Tokens: engine counters and usage records")
        show(table(columns, blank, right=columns[3:]))
    elif not tokens["note"]:
        note("No engine counters were sampled in this period.")
    for one in tokens["unsampled"]:
        note(
            f"{clean(one['engine'])}: {one['records']:,} records from {clean(one['from'])} to "
            f"{clean(one['to'])} have no engine counters to compare with."
        )


def _reason(line: Json) -> str:
    return f"{line['reason']} ({line['records']:,} records)"


def _bill(bill: Json, *, accounts: bool) -> None:
    currency = clean(bill["currency"])
    say("")
    say("GPU-hours and cost: Florin compared with the bill")
    rows = [
        ["Florin: provisioned", _hours(bill["provisioned_gpu_hours"]), _money(bill["own_cost"]), Text("")],
        *_differences(bill["lines"]),
        [
            Text("billed", "bold"), _hours(bill["billed_gpu_hours"]), _money(bill["billed_cost"]),
            Text(""),
        ],
    ]  # fmt: skip  # as the columns
    columns = ("", "GPU-hours", f"cost {currency}", "explained")
    show(table(columns, rows, right=columns[1:3]))
    note(f"{bill['attributed_gpu_hours']} of the provisioned hours are attributed to tenants' requests.")
    if accounts:
        _accounts(bill["accounts"], columns)


def _accounts(accounts: list[Json], columns: tuple[str, ...]) -> None:
    for one in accounts:
        name = " ".join(
            part for part in (one["engine"], one["gpu_type"], one["region"], one["purchase"]) if part
        )
        rates = (
            f"billed at {one['billed_rate'] or '-'}, by the price book {one['own_rate'] or '-'} per GPU-hour"
        )
        say("")
        say(f"{name}: {rates}")
        rows = [
            ["provisioned", _hours(one["provisioned_gpu_hours"]), _money(one["own_cost"]), Text("")],
            *_differences(one["lines"]),
            ["billed", _hours(one["billed_gpu_hours"]), _money(one["billed_cost"]), Text("")],
        ]
        show(table(columns, rows, right=columns[1:3]))


def _differences(lines: list[Json]) -> list[list[Any]]:
    return [
        [
            f"  {line['reason']}{_when(line)}",
            _hours(line["gpu_hours"], sign="+"),
            _money(line["cost"], sign="+"),
            "yes" if line["explained"] else Text("no", "bold"),
        ]
        for line in lines
    ]


def _when(line: Json) -> str:
    if not line["hours"]:
        return ""
    if line["hours"] == 1:
        return f" ({line['first']})"
    return f" ({line['hours']:,} hours, {line['first']} to {line['last']})"


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


def _hours(text: str, sign: str = "") -> str:
    """Rounded to six places for people; --json is exact."""
    return f"{Decimal(text):{sign},.6f}"


def _money(text: str, sign: str = "") -> str:
    return f"{Decimal(text):{sign},.6f}"

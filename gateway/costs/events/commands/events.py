"""florin cost events"""

from __future__ import annotations

import json
import os
import sys
import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from adapters.wording import counted
from gateway.commands.client import Json, UsageError
from gateway.commands.output import note
from gateway.commands.session import REFUSED, Session, command
from gateway.costs.events.commands.delivery import Receiver
from gateway.costs.events.schemas import CloudEvents

app = typer.Typer()

_PATH = "/finance/v1/events"
_PAGE = 1000
TOKEN = "FLORIN_EVENTS_TOKEN"  # noqa: S105  # the name of the variable


class EventKind(StrEnum):
    USAGE = "usage"
    COST = "cost"
    CHARGE = "charge"


class EventFormat(StrEnum):
    CLOUDEVENTS = "cloudevents"
    LAGO = "lago"
    STRIPE = "stripe"


@command(app, "events")
def events(
    session: Session,
    *,
    kind: Annotated[
        EventKind,
        typer.Option(
            help="usage: each billable request; cost: what a closed month cost, by customer and adapter; "
            "charge: what customers are charged for it, by line."
        ),
    ] = EventKind.USAGE,
    month: Annotated[str | None, typer.Option(help="For cost and charge: the closed month.")] = None,
    since: Annotated[
        str | None, typer.Option("--from", help="For usage: leave out what ended earlier, ISO 8601.")
    ] = None,
    form: Annotated[
        EventFormat, typer.Option("--format", help="cloudevents suits OpenMeter.")
    ] = EventFormat.CLOUDEVENTS,
    customer: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TENANT=ID",
            help="The tenant's customer or subscription in the billing system. Default: its name. "
            "Repeatable.",
        ),
    ] = None,
    cursor: Annotated[
        Path | None,
        typer.Option(
            help="File that keeps the position, from which the next run continues.", show_default=False
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Append to this file, one event a line.", show_default=False),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(
            help=f"Post to the billing system at this URL, with the token in {TOKEN}.", show_default=False
        ),
    ] = None,
    follow: Annotated[
        float | None,
        typer.Option(
            min=1, help="Keep running, and look for new events every so many seconds.", show_default=False
        ),
    ] = None,
) -> None:
    """Write usage, cost or charges as events to a file, to stdout or to a billing system.

    Ids never change, so sending events again does no harm: billing systems drop duplicates. Usage
    comes in the order in which it reached the ledger; with --cursor, none is missed, however late it is.

    Example: florin cost events --url https://openmeter.example/api/v1/events --cursor /var/lib/florin/cursor
    """
    _check(kind, month, form, output, url, follow)
    receiver = Receiver(form.value, _customers(customer or []), output, url, os.environ.get(TOKEN, ""))
    params: Json = {
        "kind": kind.value,
        "month": month,
        "since": since,
        "limit": _PAGE,
        "after": _held(cursor),
    }
    sent = 0
    while True:
        page = session.api.get(_PATH, CloudEvents, params)
        failure = receiver.take([event.model_dump() for event in page.data])
        if failure:
            note(
                f"{counted(receiver.sent, 'event')} delivered; then: {failure} Run it again to go on from "
                "there."
            )
            raise typer.Exit(REFUSED)
        sent += len(page.data)
        if cursor is not None and page.next is not None:
            _keep(cursor, page.next)
        params["after"] = page.next or params["after"]
        if page.more:
            continue
        if follow is None:
            break
        time.sleep(follow)
    _tell(session, receiver, sent, params["after"])


def _tell(session: Session, receiver: Receiver, sent: int, position: str | None) -> None:
    if receiver.to_stdout:
        note(f"{counted(sent, 'event')}.")
    else:
        body = {"events": sent, "delivered": receiver.sent, "already_there": receiver.known, "next": position}
        session.result(
            body, lambda _: note(f"{counted(sent, 'event')} delivered, known already: {receiver.known:,}.")
        )


def _check(
    kind: EventKind,
    month: str | None,
    form: EventFormat,
    output: Path | None,
    url: str | None,
    follow: float | None,
) -> None:
    of_month = kind is not EventKind.USAGE
    if of_month != (month is not None):
        raise UsageError("--month is required for --kind cost and charge, and only for them.")
    if of_month and (form is EventFormat.STRIPE or follow is not None):
        raise UsageError(f"--kind {kind} has no tokens for Stripe's meters, and nothing to follow.")
    if output is not None and url is not None:
        raise UsageError("--output and --url exclude each other.")
    if url is not None and not url.startswith(("https://", "http://")):
        raise UsageError(f"--url: {url!r} is not an http(s) URL.")


def _customers(pairs: list[str]) -> dict[str, str]:
    customers = {}
    for pair in pairs:
        tenant, equals, name = pair.partition("=")
        if not (tenant and equals and name):
            raise UsageError(f"--customer: {pair!r} is not TENANT=ID, like acme=cus_123.")
        customers[tenant] = name
    return customers


def _held(cursor: Path | None) -> str | None:
    """The position in the file; None if there is no file yet. Raises UsageError."""
    if cursor is None:
        return None
    try:
        saved = json.loads(cursor.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise UsageError(f"--cursor: {cursor} cannot be read: {error}") from error
    if not isinstance(saved, dict) or not isinstance(saved.get("next"), str):
        raise UsageError(f"--cursor: {cursor} is not a cursor of florin cost events.")
    position: str = saved["next"]
    return position


def _keep(cursor: Path, position: str) -> None:
    """Replace the file at once, so that a crash leaves the old or the new position. Raises UsageError."""
    replacement = cursor.with_name(f".{cursor.name}.new")
    try:
        with replacement.open("w") as file:
            file.write(json.dumps({"next": position}) + "\n")
            file.flush()
            os.fsync(file.fileno())
        replacement.replace(cursor)
    except OSError as error:
        sys.stdout.flush()
        raise UsageError(f"--cursor: {cursor} cannot be written: {error.strerror}.") from error

"""florin cost set-aside | exclude"""

from __future__ import annotations

from typing import Annotated

import typer

from gateway.commands.client import Json
from gateway.commands.output import clean, note, say, show, table
from gateway.commands.session import REFUSED, Session, command, confirm

app = typer.Typer()

_PATH = "/finance/v1/set-aside"


@command(app, "set-aside")
def set_aside(session: Session) -> None:
    """List engine-hours that cannot be rolled up, and why. They are in no report and no bill.

    Example: florin cost set-aside
    """
    session.result(session.api.get(_PATH), _listed)


def _listed(body: Json) -> None:
    if not body["data"]:
        note("No engine-hour is set aside.")
        return
    rows = [
        (one["engine"], one["hour"], one["gpu_type"], one["since"], one["reason"]) for one in body["data"]
    ]
    show(table(("engine", "hour", "GPU", "since", "reason"), rows))
    note("To quarantine the implausible records: florin cost exclude ENGINE HOUR")


@command(app, "exclude")
def exclude(
    session: Session,
    engine: Annotated[str, typer.Argument(help="The engine shown by `florin cost set-aside`.")],
    hour: Annotated[str, typer.Argument(help="The hour shown by `florin cost set-aside`.")],
    *,
    everything: Annotated[
        bool, typer.Option("--everything", help="Exclude all records of the hour, not only implausible ones.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Skip the confirmation prompt.")] = False,
) -> None:
    """Quarantine the implausible records of an engine-hour, and roll up the rest of the hour.

    Quarantined usage is not billed. Exit code 1 if the hour still cannot be rolled up.

    Example: florin cost exclude gpu-a 2026-11-03T14:00:00Z
    """
    confirm(f"Exclude records of {engine} at {hour} from all reports and bills?", yes=yes)
    asked = {"engine": engine, "hour": hour, "everything": everything}
    body = session.api.post(f"{_PATH}/exclude", asked)
    session.result(body, _excluded)
    if body["set_aside"]:
        raise typer.Exit(REFUSED)


def _excluded(body: Json) -> None:
    say(f"{body['quarantined']:,} records quarantined.")
    if body["kept"]:
        note(f"{body['kept']:,} records belong to closed months and stay; the figures do not change.")
    if body["set_aside"]:
        note(
            f"{clean(body['engine'])} at {clean(body['hour'])} still cannot be rolled up: "
            "see florin cost set-aside, or exclude all of its records with --everything."
        )
    else:
        note(f"{clean(body['engine'])} at {clean(body['hour'])} is rolled up again.")
